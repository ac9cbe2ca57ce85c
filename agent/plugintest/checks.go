package plugintest

import (
	"context"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
)

// check is one check of a plugin test.
type check struct {
	id  string
	doc string // the purpose of the check, in one line
	// needs returns the reason why the check cannot run, or "" if the check can run.
	needs func(*run) string
	// want brings the volume into the state in which the check begins, or returns the reason why it
	// cannot; nil if the check can begin in every state.
	want  func(context.Context, *run) string
	do    func(context.Context, *run) finding
	kills bool // set if the check kills the plugin's process
	// last is set if the check undoes the test. Such a check runs even if the test has timed out or
	// the caller has gone.
	last   bool
	always bool // set if the check runs even when the plugin is not ready
}

// Check describes a check for users.
type Check struct{ ID, Doc string }

// List returns all checks in the order in which they run.
func List() []Check {
	all := make([]Check, 0, len(checks))
	for _, c := range checks {
		all = append(all, Check{c.id, c.doc})
	}
	return all
}

// checks lists all checks in the order in which they run. The order matters, because most checks
// leave the volume in the state that the next check needs.
var checks = []check{
	{id: "name", doc: "the driver's name is valid by the CSI spec: at most 63 letters, digits, dots and dashes", needs: free, do: checkName},
	{id: "probe", doc: "Probe reports that the plugin is ready", needs: free, do: checkProbe},
	{id: "capabilities", doc: "the plugin's capabilities, including those that this agent does not know", needs: free, do: checkCapabilities},
	{id: "node-info", doc: "NodeGetInfo returns the same node id twice, of at most 256 bytes", needs: needNode, do: checkNodeInfo},
	{id: "create", doc: "CreateVolume creates a volume of at least the requested size", needs: needCreate, do: checkCreate},
	{id: "create-again", doc: "CreateVolume with the same name returns the same volume", needs: needCreated, do: checkCreateAgain},
	{id: "create-size", doc: "CreateVolume with the same name and another size returns ALREADY_EXISTS", needs: needSized, do: checkCreateSize},
	{id: "create-name", doc: "CreateVolume accepts a name of 128 bytes", needs: needCreated, do: checkCreateName},
	{id: "attach", doc: "ControllerPublishVolume attaches the volume to this node", needs: needAttach, do: checkAttach},
	{id: "attach-again", doc: "attaching again returns the same publish context", needs: needAttach, do: checkAttachAgain},
	{id: "stage", doc: "NodeStageVolume succeeds, and its mount opens", needs: needStage, do: checkStage},
	{id: "stage-again", doc: "staging again succeeds and adds no mount", needs: needStage, want: wantStaged, do: checkStageAgain},
	{id: "publish", doc: "NodePublishVolume succeeds and makes the target below an existing directory", needs: needMount, want: wantFree, do: checkPublish},
	{id: "mounted", doc: "when NodePublishVolume has answered, the host has a mount at the target, and it opens", needs: needMount, do: checkMounted},
	{id: "source", doc: "the mount shows the volume, not the empty staging directory", needs: needMount, do: checkSource},
	{id: "publish-again", doc: "publishing again succeeds and adds no mount", needs: needMount, want: wantPublished, do: checkPublishAgain},
	{id: "write", doc: "a file can be written, synced and read", needs: needWrite, want: wantPublished, do: writeTestFile},
	{id: "second-target", doc: "a second target shows the same data, and unpublishing it does not affect the first", needs: needMany, want: wantPublished, do: checkSecond},
	{id: "stats", doc: "NodeGetVolumeStats returns numbers of bytes", needs: needStats, want: wantPublished, do: checkStats},
	{id: "unpublish", doc: "NodeUnpublishVolume removes the mount and the target", needs: needMount, want: wantPublished, do: checkUnpublish},
	{id: "unpublish-again", doc: "unpublishing again succeeds", needs: needMount, want: wantFree, do: checkUnpublishAgain},
	{id: "unpublish-never", doc: "unpublishing a target that never existed succeeds", needs: needMount, want: wantFree, do: checkUnpublishNever},
	{id: "data-republish", doc: "the file still exists after unpublish and publish", needs: needData, want: wantFree, do: checkKept},
	{id: "read-only", doc: "a read-only mount cannot be written to", needs: needMount, want: wantFree, do: checkReadOnly},
	{id: "unstage-published", doc: "unstaging a published volume does not affect the published mount", needs: needStage, want: wantPublished, do: checkUnstagePublished},
	{id: "unstage", doc: "NodeUnstageVolume removes the mount at the staging path", needs: needStage, want: wantFree, do: checkUnstage},
	{id: "unstage-again", doc: "unstaging again succeeds, even without the directory", needs: needStage, want: wantBare, do: checkUnstageAgain},
	{id: "publish-unstaged", doc: "the plugin refuses a publish without a stage", needs: needStage, want: wantAttached, do: checkPublishUnstaged},
	{id: "data-restage", doc: "the file still exists after unstage and stage", needs: needData, want: wantBare, do: checkKept},
	{id: "unknown-publish", doc: "publishing a volume that does not exist returns NOT_FOUND", needs: needMount, want: wantBare, do: checkUnknownPublish},
	{id: "unknown-unpublish", doc: "unpublishing a volume that does not exist returns NOT_FOUND, or succeeds", needs: needMount, want: wantBare, do: checkUnknownUnpublish},
	{id: "unknown-delete", doc: "deleting a volume that does not exist succeeds", needs: needCreate, do: checkUnknownDelete},
	{id: "late-mount", doc: "after a publish that is undone at once, no late mount appears", needs: needMount, want: wantFree, do: checkLate},
	{id: "given-up-stage", doc: "a stage that was given up half-way and undone has no late effect", needs: needStage, want: wantAttached, do: checkGivenUpStage},
	{id: "given-up-publish", doc: "a publish that was given up half-way and undone has no late effect", needs: needMount, want: wantFree, do: checkGivenUpPublish},
	{id: "at-once", doc: "simultaneous calls for one volume are served in turn, or return ABORTED", needs: needMount, want: wantAttached, do: checkAtOnce},
	{id: "long-path", doc: "a target path of 128 bytes is accepted", needs: needMount, want: wantFree, do: checkLongPath},
	{id: "hidden-path", doc: "a target below a directory with a leading dot is accepted", needs: needMount, want: wantFree, do: checkHiddenPath},
	{id: "argv-path", doc: "staging works while another process has the staging path among its arguments", needs: needStage, want: wantBare, do: checkArgvPath},
	{id: "kill-stage", doc: "after a kill during a stage, the plugin becomes ready again, and staging succeeds", needs: needKillStage, want: wantAttached, do: checkKillStage, kills: true},
	{id: "kill-mounted", doc: "after a kill, the mount survives or can be made again", needs: needKill, want: wantPublished, do: checkKillMounted, kills: true},
	{id: "fence", doc: "after ControllerUnpublishVolume, a process that has a file of the volume open cannot write to it", needs: needFence, want: wantPublished, do: checkFence},
	{id: "detach", doc: "ControllerUnpublishVolume succeeds", needs: needAttach, do: checkDetach, last: true},
	{id: "detach-again", doc: "detaching again succeeds", needs: needAttach, do: checkDetach, last: true},
	{id: "delete", doc: "DeleteVolume succeeds", needs: needCreated, do: checkDelete, last: true},
	{id: "delete-again", doc: "deleting again succeeds", needs: needCreated, do: checkDelete, last: true},
	{id: "leftovers", doc: "the test has no leftovers: no mount, no directory, no volume", needs: free, do: checkLeftovers, last: true, always: true},
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
		return "the plugin reports no capacity; request one with --size"
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
		return fmt.Sprintf("access mode %s does not allow writing", r.rec.Capability.Access)
	}
	return needMount(r)
}

func needData(r *run) string {
	if r.data == nil {
		return "no file was written"
	}
	return needMount(r)
}

// needMany skips a check if the access mode allows only one target. It returns the reason.
func needMany(r *run) string {
	switch r.rec.Capability.Access {
	case call.SingleNodeReaderOnly, call.SingleNodeWriter, call.SingleNodeSingleWriter:
		return fmt.Sprintf("access mode %s allows only one target; choose another with --access-mode", r.rec.Capability.Access)
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
		return "this check needs --kill"
	}
	return needMount(r)
}

func needKillStage(r *run) string {
	if why := needKill(r); why != "" {
		return why
	}
	return needStage(r)
}
