package plugintest

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// driverName is the pattern for driver names in the CSI specification (GetPluginInfoResponse).
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

func checkName(_ context.Context, r *run) finding {
	if !driverName.MatchString(r.info.Driver) {
		return copes("%q is not a valid name by the CSI spec; the agent accepts it", r.info.Driver)
	}
	return fine("%s", strings.TrimSpace(r.info.Driver+" "+r.info.Version))
}

func checkProbe(ctx context.Context, r *run) finding {
	ready := false
	err := r.call("Probe", func(p Plugin) (err error) { ready, err = p.Probe(ctx); return err })
	switch {
	case err != nil:
		return broken("Probe fails: %s", words(err))
	case !ready:
		return broken("the plugin reports that it is not ready")
	}
	return fine("ready")
}

// number matches a capability that has no name in this agent.
var number = regexp.MustCompile(`^[0-9]+$`)

func checkCapabilities(_ context.Context, r *run) finding {
	var known, unknown []string
	for _, c := range slices.Concat(r.info.ControllerCaps, r.info.NodeCaps) {
		list := &known
		if number.MatchString(c) {
			list = &unknown
		}
		if !slices.Contains(*list, c) {
			*list = append(*list, c)
		}
	}

	said := "none"
	if len(known) > 0 {
		said = strings.Join(known, ", ")
	}

	if len(unknown) > 0 {
		said += "; unknown to this agent, and not used: " + strings.Join(unknown, ", ")
	}

	if !r.info.HasNode {
		return copes("the plugin has no node service, so it cannot mount volumes by itself; %s", said)
	}

	return fine("%s", said)
}

// maxNodeID is the maximum length of a node id, in bytes (CSI specification, "Size Limits").
const maxNodeID = 256

func checkNodeInfo(ctx context.Context, r *run) finding {
	var ids [2]string
	for i := range ids {
		var info plugin.Info
		if err := r.call("NodeGetInfo", func(p Plugin) (err error) { info, err = p.Info(ctx); return err }); err != nil {
			return broken("a repeated call fails: %s", words(err))
		}
		ids[i] = info.NodeID
	}

	switch id := ids[0]; {
	case id != ids[1] || id != r.info.NodeID:
		return broken("the node id changes: %q, then %q and %q", r.info.NodeID, id, ids[1])
	case id == "" && r.info.Caps.Attach:
		return broken("the node id is empty, but the plugin needs it to attach volumes")
	case id == "":
		return copes("the node id is empty; the agent needs it only to attach volumes")
	case len(id) > maxNodeID:
		return copes("the node id has %d bytes, more than %d", len(id), maxNodeID)
	default:
		return fine("%s", id)
	}
}

// createVolume creates a volume. It stores the name of the volume first, so that a later test can
// delete the volume after a crash.
func createVolume(ctx context.Context, r *run, name string, capacity int64) (call.CreateVolumeResult, error) {
	at := slices.IndexFunc(r.rec.Volumes, func(v plugin.ScratchVolume) bool { return v.Name == name })
	if at < 0 {
		at = len(r.rec.Volumes)
		r.rec.Volumes = append(r.rec.Volumes, plugin.ScratchVolume{Name: name})
		if err := r.save(ctx); err != nil {
			return call.CreateVolumeResult{}, err
		}
	}

	var made call.CreateVolumeResult
	err := r.call("CreateVolume", func(p Plugin) (err error) {
		made, err = call.Do(ctx, p, creation(r.rec, name, capacity, r.secrets))
		return err
	})
	was := r.rec.Volumes[at].ExternalID
	switch {
	case err == nil && was == "":
		r.rec.Volumes[at].ExternalID, r.rec.Volumes[at].Context = made.ExternalID, made.Context
	case err == nil && was != made.ExternalID: // the test must delete both volumes
		r.rec.Volumes = append(r.rec.Volumes, plugin.ScratchVolume{Name: name, ExternalID: made.ExternalID, Context: made.Context})
	case err != nil && was == "" && !uncertain(err):
		r.rec.Volumes = slices.Delete(r.rec.Volumes, at, at+1)
	default:
		return made, err
	}

	if serr := r.save(ctx); err == nil {
		err = serr
	}

	return made, err
}

func checkCreate(ctx context.Context, r *run) finding {
	if r.ask.ExternalID != "" {
		return skipped("the test uses volume %q", r.ask.ExternalID)
	}

	made, err := createVolume(ctx, r, r.rec.Name(), r.rec.Capacity)
	if code(err) == volume.CodeInvalidArgument {
		r.refused = volume.Errorf(volume.ErrInvalid, "plugin %q refuses to create the requested volume: %s", r.id, words(err)).
			WithHint("set the plugin's parameters with --param, or name a volume with --external-id")
		return skipped("the plugin refuses: %s", words(err))
	}
	if err != nil {
		return broken("%s", words(err))
	}

	r.vol, r.capacity = r.rec.Volumes[0], made.Capacity
	if made.Capacity > 0 && made.Capacity < r.rec.Capacity {
		return broken("the plugin created %d bytes instead of %d", made.Capacity, r.rec.Capacity)
	}
	if n := len(made.ExternalID); n > maxPath {
		return copes("the id %.24q… has %d bytes, more than %d", made.ExternalID, n, maxPath)
	}

	return fine("created as %q", made.ExternalID)
}

func checkCreateAgain(ctx context.Context, r *run) finding {
	made, err := createVolume(ctx, r, r.rec.Name(), r.rec.Capacity)
	switch {
	case err != nil:
		return broken("%s; the agent cannot continue an interrupted create", words(err))
	case made.ExternalID != r.vol.ExternalID:
		return broken("the plugin created another volume, %q; an interrupted create leaks a volume", made.ExternalID)
	case !maps.Equal(made.Context, r.vol.Context):
		return copes("the plugin returned the same volume with another context; the agent keeps the first context")
	}

	return fine("the same volume")
}

func checkCreateSize(ctx context.Context, r *run) finding {
	made, err := createVolume(ctx, r, r.rec.Name(), 2*r.capacity)
	switch code(err) {
	case volume.CodeAlreadyExists:
		return fine("refused")
	case volume.CodeOK:
		if made.ExternalID != r.vol.ExternalID {
			return broken("the plugin created another volume of the same name, %q", made.ExternalID)
		}
		return copes("the plugin returns the volume in spite of its different size; the agent never changes the size for a name")
	default:
		return copes("%s instead of AlreadyExists; the agent never changes the size for a name", words(err))
	}
}

func checkCreateName(ctx context.Context, r *run) finding {
	name := r.rec.Name() + "-"
	name += strings.Repeat("x", maxPath-len(name))
	made, err := createVolume(ctx, r, name, r.rec.Capacity)
	if err != nil {
		return copes("%s; use shorter volume ids with this plugin", words(err))
	}
	if err := r.s.delete(ctx, r.id, plugin.ScratchVolume{Name: name, ExternalID: made.ExternalID}, r.secrets); err != nil {
		return broken("%v", err)
	}

	r.rec.Volumes = slices.DeleteFunc(r.rec.Volumes, func(v plugin.ScratchVolume) bool { return v.Name == name })
	if err := r.save(ctx); err != nil {
		return broken("%v", err)
	}

	return fine("accepted")
}

func checkAttach(ctx context.Context, r *run) finding {
	if err := r.attach(ctx); err != nil {
		return broken("%s", words(err))
	}
	return fine("attached to node %q", r.info.NodeID)
}

func checkAttachAgain(ctx context.Context, r *run) finding {
	if err := r.attach(ctx); err != nil {
		return skipped("the volume is not attached")
	}

	given, err := r.controllerPublish(ctx)
	switch {
	case err != nil:
		return broken("%s; after a crash the agent must attach again", words(err))
	case !maps.Equal(given, r.publishCtx):
		r.publishCtx = given
		return copes("the publish context changes; the agent uses the last one")
	}

	return fine("the same publish context")
}

func checkDetach(ctx context.Context, r *run) finding {
	if r.staged || r.dirty || len(r.up) > 0 {
		return skipped("the volume is still mounted")
	}

	err := r.controllerUnpublish(ctx)
	switch code(err) {
	case volume.CodeOK:
		return fine("detached")
	case volume.CodeNotFound:
		return copes("%s; nothing is mounted, so the agent treats this as success", words(err))
	default:
		return broken("%s", words(err))
	}
}

func checkDelete(ctx context.Context, r *run) finding {
	if r.staged || r.dirty || len(r.up) > 0 || r.attached {
		return skipped("the volume is still in use")
	}

	err := r.call("DeleteVolume", func(p Plugin) error {
		return call.Run(ctx, p, call.DeleteVolumeRequest{ExternalID: r.vol.ExternalID, Secrets: r.secrets})
	})
	if c := code(err); c == volume.CodeOK || c == volume.CodeNotFound {
		r.rec.Volumes = slices.DeleteFunc(r.rec.Volumes, func(v plugin.ScratchVolume) bool { return v.ExternalID == r.vol.ExternalID })
	}

	switch code(err) {
	case volume.CodeOK:
		return fine("deleted")
	case volume.CodeNotFound:
		return copes("%s; the agent treats this as success", words(err))
	default:
		return broken("%s", words(err))
	}
}

func checkUnknownDelete(ctx context.Context, r *run) finding {
	err := r.call("DeleteVolume", func(p Plugin) error {
		return call.Run(ctx, p, call.DeleteVolumeRequest{ExternalID: unknownID(r), Secrets: r.secrets})
	})
	if err != nil {
		return copes("%s; the agent deletes only volumes that it has on record", words(err))
	}
	return fine("the call succeeds")
}

// unknownID returns the id of a volume that does not exist.
func unknownID(r *run) string { return fmt.Sprintf("%s-none", r.rec.Name()) }

// checkLeftovers undoes all remaining effects of earlier checks, and reports the leftovers that it
// cannot undo.
func checkLeftovers(ctx context.Context, r *run) finding {
	rec := r.rec
	var left []string
	created := slices.ContainsFunc(rec.Volumes, func(v plugin.ScratchVolume) bool { return v.Name != "" })
	if r.anywhere(ctx) || r.dirty || r.staged || r.attached || created || len(r.touched) > 0 {
		left = r.s.undo(ctx, r.id, &rec)
	}

	left = append(left, r.s.rmdirs(rec.Dirs)...)
	for _, path := range append([]string{rec.Staging}, rec.Targets...) {
		if sight := r.s.Host.Look(ctx, path); sight.Seen != volume.SeenNothing {
			left = append(left, path+" still has a mount")
		}
	}

	if r.ask.ExternalID != "" && r.wrote {
		left = append(left, fmt.Sprintf("the file %q in the volume", rec.File))
	}

	slices.Sort(left)
	if left = slices.Compact(left); len(left) > 0 {
		return broken("%s; the agent keeps a record of this, and retries at the next test and at its next start", strings.Join(left, "; "))
	}
	if err := r.s.drop(ctx, r.id); err != nil {
		return broken("%v", err)
	}

	return fine("none")
}
