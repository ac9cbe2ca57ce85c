package provision_test

import (
	"context"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
)

// storage holds the functions that answer the plugin's calls, except create and delete. A nil
// function gives an empty answer.
type storage struct {
	modify   func(call.ModifyRequest) error
	get      func(externalID string) (call.StorageVolume, error)
	list     func(call.ListVolumesRequest) (call.VolumePage, error)
	stats    func() (call.Stats, error)
	onNode   func(context.Context) (call.Health, error)
	onCtl    func() (call.Health, error)
	backends func() ([]call.Condition, error)
	unwell   func(call.ListHealthRequest) (call.HealthPage, error)
}

func (w *world) Reporter(string) (call.Caller, error) { return w.handlers(), nil }

// handlers returns the plugin of the world.
func (w *world) handlers() call.Handlers {
	h := call.Handlers{}
	call.HandleDo(h, w.CreateVolume)
	call.HandleRun(h, w.DeleteVolume)
	call.HandleRun(h, w.ValidateCapabilities)
	call.HandleRun(h, w.ControllerModify)
	call.HandleDo(h, w.ControllerGetVolume)
	call.HandleDo(h, w.ListVolumes)
	call.HandleDo(h, w.GetCapacity)
	call.HandleDo(h, w.NodeStats)
	call.HandleDo(h, w.NodeHealth)
	call.HandleDo(h, w.StorageHealth)
	call.HandleDo(h, w.ControllerHealth)
	call.HandleDo(h, w.ListHealth)
	return h
}

// asked records a call that does not concern a single volume.
func (w *world) asked(words ...string) { w.calls = append(w.calls, strings.Join(words, " ")) }

func (w *world) ControllerModify(ctx context.Context, r call.ModifyRequest) error {
	w.called(ctx, "modify %s %v", r.ExternalID, r.Mutable)
	if w.volumes["data"].Volume.Modifying == nil {
		w.calls = append(w.calls, "with no intent on disk")
	}
	if w.modify == nil {
		return nil
	}
	return w.modify(r)
}

func (w *world) ControllerGetVolume(ctx context.Context, r call.GetVolumeRequest) (call.StorageVolume, error) {
	w.called(ctx, "get %s", r.ExternalID)
	if w.get == nil {
		return call.StorageVolume{ExternalID: r.ExternalID}, nil
	}
	return w.get(r.ExternalID)
}

func (w *world) ListVolumes(_ context.Context, r call.ListVolumesRequest) (call.VolumePage, error) {
	w.asked("list", r.Token)
	return w.list(r)
}

func (w *world) GetCapacity(context.Context, call.CapacityRequest) (call.CapacityResult, error) {
	w.asked("capacity")
	return call.CapacityResult{Available: 5}, nil
}

func (w *world) NodeStats(ctx context.Context, r call.StatsRequest) (call.Stats, error) {
	w.called(ctx, "stats %s %s", r.ExternalID, r.Path)
	if w.stats == nil {
		return call.Stats{Bytes: &call.Usage{Total: 1}}, nil
	}
	return w.stats()
}

func (w *world) NodeHealth(ctx context.Context, r call.NodeHealthRequest) (call.Health, error) {
	w.called(ctx, "node health %s %s %s", r.ExternalID, r.Path, r.StagingPath)
	if w.onNode == nil {
		return call.Health{}, nil
	}
	return w.onNode(ctx)
}

func (w *world) StorageHealth(context.Context, call.StorageHealthRequest) ([]call.Condition, error) {
	w.asked("storage health")
	return w.backends()
}

func (w *world) ControllerHealth(ctx context.Context, r call.ControllerHealthRequest) (call.Health, error) {
	w.called(ctx, "controller health %s, %d secret", r.ExternalID, len(r.Secrets))
	if w.onCtl == nil {
		return call.Health{}, nil
	}
	return w.onCtl()
}

func (w *world) ListHealth(_ context.Context, r call.ListHealthRequest) (call.HealthPage, error) {
	w.asked("list health", r.Token)
	return w.unwell(r)
}
