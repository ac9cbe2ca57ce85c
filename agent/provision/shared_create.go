package provision

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// sharedCreate is the create of one shared volume. Any host can continue it: the definition in the
// cluster holds the operation and the CSI name, for which the plugin returns the same storage again.
type sharedCreate struct {
	s    *creator
	spec volume.Volume
	had  volume.SharedVolume // the unfinished create that this one continues, or empty
	ok   bool                // whether there is one
	info plugin.Info

	operation string
}

// createShared creates a shared volume.
func (s *creator) createShared(ctx context.Context, spec volume.Volume, had volume.SharedVolume, ok, dry bool, wait time.Duration) (volume.Record, volume.Change, error) {
	if err := s.checkShareable(spec); err != nil {
		return failed(err)
	}

	info, err := s.awaitController(ctx, spec)
	if err == nil {
		err = spec.CheckBoot(info)
	}
	if err != nil {
		return failed(err)
	}
	snapshot, clone, err := s.sources.find(ctx, spec, info, ok)
	if err != nil {
		return failed(err)
	}

	t := &sharedCreate{s: s, spec: spec, had: had, ok: ok, info: info}
	if err := t.prepare(); err != nil {
		return failed(err)
	}
	if dry {
		return volume.Record{Volume: t.spec}, volume.Change{Outcome: volume.Created}, nil
	}

	ctx, cancel := withWait(ctx, wait)
	defer cancel()

	var made volume.SharedVolume
	err = s.repeatCreate(ctx, t.spec, wait, func() error {
		return repeatLost(ctx, func() (err error) {
			made, err = t.run(ctx, snapshot, clone)
			return err
		})
	})
	if err != nil {
		s.emit(volume.Record{Volume: t.spec}, volume.EventCreateFailed, "%v", err)
		return failed(err)
	}

	r := s.record(made)
	s.emit(r, volume.EventCreated, "created as %q of %s for all hosts", r.Volume.ExternalID, r.Volume.Driver)
	return r, volume.Change{Outcome: volume.Created}, nil
}

// prepare completes the volume file. A continued create keeps its operation and its name.
func (t *sharedCreate) prepare() error {
	operation, name := strings.ToLower(rand.Text()[:operationLength]), t.spec.Name
	if t.ok {
		v := t.had.Volume
		if v.PluginID != t.spec.PluginID || name != "" && name != v.Name {
			return volume.Errorf(volume.ErrRefused, "an earlier create of volume %q by plugin %q under the name %q has not finished", v.ID, v.PluginID, v.Name).
				WithHint("repeat the create with the earlier values, or discard it: %s", suggest.Command("volctl volume deregister %s --force", v.ID))
		}
		operation, name = t.had.Operation, v.Name
	}
	if name == "" {
		name = csiName(t.s.Cluster.ClusterID(), t.spec.ID, operation)
	}

	fill(&t.spec, t.info)
	t.spec.Name, t.spec.Created, t.spec.Provision = name, true, volume.Provisioning
	if t.ok {
		t.spec.RegisteredAt = t.had.Volume.RegisteredAt
	}
	t.spec.TopologySent = t.spec.TopologyToSend(t.info, t.had.Volume)
	t.operation = operation
	return nil
}

// These are the lengths of the parts of a CSI name. Many storage systems allow at most 63 bytes.
const (
	clusterLength   = 8
	operationLength = 12
	nameLength      = 63
)

// csiName returns the name <cluster>-<id>-<operation>, in which a long id is cut. Two clusters, or a
// volume and its successor, therefore never get the same storage.
func csiName(cluster, id, operation string) string {
	cluster = strings.ToLower(cluster[:min(len(cluster), clusterLength)])
	most := nameLength - len(cluster) - len(operation) - len("--")
	return cluster + "-" + id[:min(len(id), most)] + "-" + operation
}

// run announces and makes the call once.
func (t *sharedCreate) run(ctx context.Context, snapshot, clone string) (volume.SharedVolume, error) {
	s := t.s
	p, secrets, err := s.provisioner(t.spec)
	if err != nil {
		return t.had, err
	}

	c := s.storageCall(t.spec, call.CreateVolume)
	c.Operation = t.operation
	begun, err := s.Cluster.BeginCall(ctx, c, func(had volume.SharedVolume, ok bool) (volume.Volume, error) {
		if ok && (had.Operation != t.operation || had.Volume.Provision != volume.Provisioning) {
			return had.Volume, volume.Errorf(volume.ErrRefused, "volume %q was registered meanwhile", t.spec.ID)
		}
		return t.spec, nil
	})
	if err != nil {
		return begun, err
	}

	asked := t.spec
	asked.SnapshotID, asked.CloneID, asked.Topology = snapshot, clone, t.spec.TopologySent
	got, err := callCreate(ctx, p, asked, secrets)
	if err != nil {
		return begun, t.failed(ctx, begun, c, err)
	}

	ctx = context.WithoutCancel(ctx)
	made, err := s.Cluster.EndCall(ctx, c, got.ExternalID, func(v volume.Volume) volume.Volume { return created(v, got) })
	switch {
	case errors.Is(err, volume.ErrStorageTaken):
		return made, errors.Join(err, s.Cluster.Undefine(ctx, begun, c.ID))
	case errors.Is(err, volume.ErrRefused):
		return made, volume.Errorf(volume.ErrRefused, "%v; plugin %q has created its storage as external_id %q", err, t.spec.PluginID, got.ExternalID).
			WithHint("repeat the create, or register that external_id: volctl volume register FILE")
	default:
		return made, err
	}
}

// created returns a volume with the answer of CreateVolume.
func created(v volume.Volume, got call.CreateVolumeResult) volume.Volume {
	v.ExternalID, v.Capacity, v.Topologies = got.ExternalID, max(got.Capacity, 0), got.Topologies
	if len(got.Context) > 0 {
		v.Context = got.Context
	}
	v.Provision = volume.Provisioned
	return v
}

// failed returns the error for a failed call. It drops the intent if the plugin certainly has created
// nothing. Otherwise any host can repeat the create.
func (t *sharedCreate) failed(ctx context.Context, begun volume.SharedVolume, c volume.StorageCall, cause error) error {
	s, v := t.s, begun.Volume
	ctx = context.WithoutCancel(ctx)
	if !uncertain(cause) && !t.ok {
		var ce *volume.CallError
		errors.As(cause, &ce)
		if err := s.Cluster.Undefine(ctx, begun, c.ID); err != nil {
			return errors.Join(cause, err)
		}
		if words := missingSource(v, ce); words != nil {
			return withCall(call.CreateVolume, cause, words)
		}
		return refusal(v.PluginID, cause)
	}

	var left error
	if uncertain(cause) {
		t.had, t.ok = begun, true
		s.Cluster.LeaveCall(c)
	} else {
		_, left = s.Cluster.EndCall(ctx, c, "", same)
	}
	return errors.Join(withCall(call.CreateVolume, cause, &volume.Error{
		Kind:    kindOf(cause),
		Message: fmt.Sprintf("%v; it is unknown whether plugin %q has made volume %q. The cluster keeps the intent, because the plugin may have a volume named %q", cause, v.PluginID, v.ID, v.Name),
		Hint:    "repeat the create on any host, or " + s.listHint(v.PluginID) + "discard it: " + suggest.Command("volctl volume deregister %s --force", v.ID),
	}), left)
}
