package plugintest

import (
	"context"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
)

// check is one check of the test.
type check struct {
	id  string
	doc string // its purpose in one line
	// needs returns the reason why the check cannot run; empty if it can.
	needs func(*run) string
	do    func(context.Context, *run) finding
	kills bool // it ends the plugin's process
	// last is set for checks that undo the test. They run for every end of the test, also a
	// timeout.
	last   bool
	always bool // it runs even if the plugin is not ready
}

// Check is the name and the purpose of a check, for people.
type Check struct{ ID, Doc string }

// List returns all checks in their order.
func List() []Check {
	all := make([]Check, 0, len(checks))
	for _, c := range checks {
		all = append(all, Check{c.id, c.doc})
	}
	return all
}

// checks are in the order in which they run. Each mostly leaves the volume in the state that the
// next one needs.
var checks = []check{
	{id: "name", doc: "the driver's name is one by the spec: at most 63 letters, digits, dots and dashes", needs: free, do: checkName},
	{id: "probe", doc: "Probe says that it is ready", needs: free, do: checkProbe},
	{id: "capabilities", doc: "which capabilities it has, those included that this agent does not know", needs: free, do: checkCapabilities},
	{id: "node-info", doc: "NodeGetInfo gives the same node id twice, of at most 256 bytes", needs: needNode, do: checkNodeInfo},
	{id: "create", doc: "CreateVolume makes a volume of at least the size asked for", needs: needCreate, do: checkCreate},
	{id: "create-again", doc: "the same name again gives the same volume", needs: needCreated, do: checkCreateAgain},
	{id: "create-size", doc: "the same name with another size is ALREADY_EXISTS", needs: needSized, do: checkCreateSize},
	{id: "create-name", doc: "a name of 128 bytes is accepted", needs: needCreated, do: checkCreateName},
	{id: "attach", doc: "ControllerPublishVolume attaches the volume to this node", needs: needAttach, do: checkAttach},
	{id: "attach-again", doc: "attaching again gives the same publish context", needs: needAttach, do: checkAttachAgain},
	{id: "stage", doc: "NodeStageVolume succeeds, and what it mounts opens", needs: needStage, do: checkStage},
	{id: "stage-again", doc: "staging again succeeds and mounts nothing more", needs: needStage, do: checkStageAgain},
	{id: "publish", doc: "NodePublishVolume succeeds and makes the target, of which only the parent is there", needs: needMount, do: checkPublish},
	{id: "mounted", doc: "the mount is at the target, in the host's view, when publish has answered, and opens", needs: needMount, do: checkMounted},
	{id: "source", doc: "what is mounted is the volume, not the empty staging directory", needs: needMount, do: checkSource},
	{id: "publish-again", doc: "publishing again succeeds and mounts nothing more", needs: needMount, do: checkPublishAgain},
	{id: "write", doc: "a file can be written, synced and read", needs: needWrite, do: checkWrite},
	{id: "second-target", doc: "a second target shows the same data, and its end leaves the first alone", needs: needMany, do: checkSecond},
	{id: "stats", doc: "NodeGetVolumeStats answers with bytes", needs: needStats, do: checkStats},
	{id: "unpublish", doc: "NodeUnpublishVolume takes mount and target away", needs: needMount, do: checkUnpublish},
	{id: "unpublish-again", doc: "unpublishing again succeeds", needs: needMount, do: checkUnpublishAgain},
	{id: "unpublish-never", doc: "unpublishing a target that never was succeeds", needs: needMount, do: checkUnpublishNever},
	{id: "data-republish", doc: "the file is still there after unpublish and publish", needs: needData, do: checkRepublish},
	{id: "read-only", doc: "a read-only publish cannot be written to", needs: needMount, do: checkReadOnly},
	{id: "unstage-published", doc: "an unstage that comes too early leaves the published mount alone", needs: needStage, do: checkUnstagePublished},
	{id: "unstage", doc: "NodeUnstageVolume takes away what stage has mounted", needs: needStage, do: checkUnstage},
	{id: "unstage-again", doc: "unstaging again succeeds, with the directory gone", needs: needStage, do: checkUnstageAgain},
	{id: "publish-unstaged", doc: "a publish without a stage is refused", needs: needStage, do: checkPublishUnstaged},
	{id: "data-restage", doc: "the file is still there after unstage and stage", needs: needData, do: checkRestage},
	{id: "unknown-publish", doc: "publishing a volume that does not exist is NOT_FOUND", needs: needMount, do: checkUnknownPublish},
	{id: "unknown-unpublish", doc: "unpublishing a volume that does not exist is NOT_FOUND, or succeeds", needs: needMount, do: checkUnknownUnpublish},
	{id: "unknown-delete", doc: "deleting a volume that does not exist succeeds", needs: needCreate, do: checkUnknownDelete},
	{id: "late-mount", doc: "a publish that is undone at once leaves no mount that comes later", needs: needMount, do: checkLate},
	{id: "given-up-stage", doc: "a stage that was given up half-way and undone leaves nothing", needs: needStage, do: checkGivenUpStage},
	{id: "given-up-publish", doc: "a publish that was given up half-way and undone leaves nothing", needs: needMount, do: checkGivenUpPublish},
	{id: "at-once", doc: "calls at the same time for one volume are served in turn, or ABORTED", needs: needMount, do: checkAtOnce},
	{id: "long-path", doc: "a target path of 128 bytes is accepted", needs: needMount, do: checkLongPath},
	{id: "hidden-path", doc: "a target below a directory with a leading dot is accepted", needs: needMount, do: checkHiddenPath},
	{id: "argv-path", doc: "staging works while another process has the staging path among its arguments", needs: needStage, do: checkArgvPath},
	{id: "kill-stage", doc: "after a kill during a stage it is ready again, and staging succeeds", needs: needKillStage, do: checkKillStage, kills: true},
	{id: "kill-mounted", doc: "after a kill the mount lives on, or can be made again", needs: needKill, do: checkKillMounted, kills: true},
	{id: "detach", doc: "ControllerUnpublishVolume succeeds", needs: needAttach, do: checkDetach, last: true},
	{id: "detach-again", doc: "detaching again succeeds", needs: needAttach, do: checkDetach, last: true},
	{id: "delete", doc: "DeleteVolume succeeds", needs: needCreated, do: checkDelete, last: true},
	{id: "delete-again", doc: "deleting again succeeds", needs: needCreated, do: checkDelete, last: true},
	{id: "leftovers", doc: "nothing of the test is left: no mount, no directory, no volume", needs: free, do: checkLeftovers, last: true, always: true},
}

func free(*run) string { return "" }

func needNode(r *run) string {
	if !r.info.HasNode {
		return "the plugin has no node service"
	}
	return ""
}

func needCreate(r *run) string {
	if !r.info.Caps.CreateDelete {
		return "the plugin has no CREATE_DELETE_VOLUME"
	}
	return ""
}

func needCreated(r *run) string {
	switch {
	case r.ask.ExternalID != "":
		return "the volume was not created by this test"
	case r.vol.ExternalID == "":
		return "no volume could be created"
	}
	return ""
}

func needSized(r *run) string {
	if why := needCreated(r); why != "" {
		return why
	}
	if r.capacity == 0 {
		return "the plugin tells no capacity; --size gives one to begin with"
	}
	return ""
}

func needVolume(r *run) string {
	if r.vol.ExternalID == "" {
		return "no volume could be created"
	}
	return ""
}

func needAttach(r *run) string {
	if !r.info.Caps.Attach {
		return "the plugin has no PUBLISH_UNPUBLISH_VOLUME"
	}
	return needVolume(r)
}

func needMount(r *run) string {
	if r.hopeless != "" {
		return r.hopeless
	}
	if why := needNode(r); why != "" {
		return why
	}
	return needVolume(r)
}

func needStage(r *run) string {
	if why := needMount(r); why != "" {
		return why
	}
	if !r.info.Caps.Stage {
		return "the plugin has no STAGE_UNSTAGE_VOLUME"
	}
	return ""
}

func needWrite(r *run) string {
	if !r.rec.Capability.Access.Writable() {
		return fmt.Sprintf("access mode %s allows no writing", r.rec.Capability.Access)
	}
	return needMount(r)
}

func needData(r *run) string {
	if r.data == nil {
		return "nothing was written"
	}
	return needMount(r)
}

// needMany skips the check in access modes that allow only one target.
func needMany(r *run) string {
	switch r.rec.Capability.Access {
	case call.SingleNodeReaderOnly, call.SingleNodeWriter, call.SingleNodeSingleWriter:
		return fmt.Sprintf("access mode %s allows one target; --access-mode gives another", r.rec.Capability.Access)
	default:
		return needData(r)
	}
}

func needStats(r *run) string {
	if !r.info.Caps.Stats {
		return "the plugin has no GET_VOLUME_STATS"
	}
	return needMount(r)
}

func needKill(r *run) string {
	if !r.ask.Kill {
		return "only with --kill"
	}
	return needMount(r)
}

func needKillStage(r *run) string {
	if why := needKill(r); why != "" {
		return why
	}
	return needStage(r)
}
