package provision_test

import (
	"context"
	"strings"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/volume"
)

// storage holds the functions that answer the plugin's calls, except create and delete. A nil
// function gives an empty answer.
type storage struct {
	modify   func(volume.ModifyRequest) error
	get      func(externalID string) (volume.StorageVolume, error)
	list     func(volume.ListVolumesRequest) (volume.VolumePage, error)
	stats    func() (volume.Stats, error)
	onNode   func(context.Context) (volume.Health, error)
	onCtl    func() (volume.Health, error)
	backends func() ([]volume.Condition, error)
	unwell   func(volume.ListHealthRequest) (volume.HealthPage, error)
}

func (w *world) Storage(string) (provision.Storage, error)   { return w, nil }
func (w *world) Reporter(string) (provision.Reporter, error) { return w, nil }

// asked records a call that concerns no single volume.
func (w *world) asked(words ...string) { w.calls = append(w.calls, strings.Join(words, " ")) }

func (w *world) ControllerModify(ctx context.Context, r volume.ModifyRequest) error {
	w.called(ctx, "modify %s %v", r.ExternalID, r.Mutable)
	if w.volumes["data"].Volume.Modifying == nil {
		w.calls = append(w.calls, "with no intent on disk")
	}
	if w.modify == nil {
		return nil
	}
	return w.modify(r)
}

func (w *world) ControllerGetVolume(ctx context.Context, externalID string) (volume.StorageVolume, error) {
	w.called(ctx, "get %s", externalID)
	if w.get == nil {
		return volume.StorageVolume{ExternalID: externalID}, nil
	}
	return w.get(externalID)
}

func (w *world) ListVolumes(_ context.Context, r volume.ListVolumesRequest) (volume.VolumePage, error) {
	w.asked("list", r.Token)
	return w.list(r)
}

func (w *world) GetCapacity(context.Context, volume.CapacityRequest) (volume.CapacityResult, error) {
	w.asked("capacity")
	return volume.CapacityResult{Available: 5}, nil
}

func (w *world) NodeStats(ctx context.Context, r volume.StatsRequest) (volume.Stats, error) {
	w.called(ctx, "stats %s %s", r.ExternalID, r.Path)
	if w.stats == nil {
		return volume.Stats{Bytes: &volume.Usage{Total: 1}}, nil
	}
	return w.stats()
}

func (w *world) NodeHealth(ctx context.Context, r volume.HealthRequest) (volume.Health, error) {
	w.called(ctx, "node health %s %s %s", r.ExternalID, r.Path, r.StagingPath)
	if w.onNode == nil {
		return volume.Health{}, nil
	}
	return w.onNode(ctx)
}

func (w *world) StorageHealth(context.Context, volume.Secrets) ([]volume.Condition, error) {
	w.asked("storage health")
	return w.backends()
}

func (w *world) ControllerHealth(ctx context.Context, r volume.HealthRequest) (volume.Health, error) {
	w.called(ctx, "controller health %s, %d secret", r.ExternalID, len(r.Secrets))
	if w.onCtl == nil {
		return volume.Health{}, nil
	}
	return w.onCtl()
}

func (w *world) ListHealth(_ context.Context, r volume.ListHealthRequest) (volume.HealthPage, error) {
	w.asked("list health", r.Token)
	return w.unwell(r)
}
