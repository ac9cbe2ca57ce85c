package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// StorageCalls sends questions to plugins, about single volumes and about the storage as a whole.
type StorageCalls interface {
	Reports
	Stats(ctx context.Context, id string) (volume.Report, error)

	// Report asks the plugin about a volume, within a time limit. With storage, it also asks the
	// plugin's controller.
	Report(ctx context.Context, id string, within time.Duration, storage bool) (volume.Report, error)

	// List calls the function each for the volumes of a plugin, at most limit times. If limit is 0,
	// it lists all volumes. It reports whether the plugin has more volumes.
	List(ctx context.Context, pluginID string, limit int, each func(call.StorageVolume) error) (more bool, err error)
	Capacity(ctx context.Context, pluginID string, q call.CapacityRequest) (call.CapacityResult, error)
	Health(ctx context.Context, pluginID string) (volume.PluginHealth, error)
}

// Storage answers requests that ask plugins about volumes and storage. No method changes state.
type Storage struct {
	view
	do StorageCalls
}

// Stats asks the plugin how full a volume is.
func (s Storage) Stats(ctx context.Context, by Caller, id string) (api.Stats, error) {
	got, err := s.do.Stats(ctx, id)
	return toStats(id, got), s.explainVolume(by, err, id)
}

// Report asks the plugin about a volume, within a time limit. With storage, it also asks the
// plugin's controller.
func (s Storage) Report(ctx context.Context, by Caller, id string, within time.Duration, storage bool) (*api.Report, error) {
	rec, err := s.record(id)
	if err != nil {
		return nil, err
	}
	got, err := s.do.Report(ctx, id, within, storage)
	return toReport(id, got), s.explain(by, err, rec.Volume.PluginID, id)
}

// Capacity asks a plugin for its free capacity.
func (s Storage) Capacity(ctx context.Context, by Caller, pluginID string, req api.CapacityRequest) (api.Capacity, error) {
	ask := call.CapacityRequest{Parameters: req.Parameters, Topology: req.Topology}
	if len(req.Capabilities) > 0 {
		ask.Capabilities = Volume(api.VolumeSpec{Capabilities: req.Capabilities}).Capabilities
	}
	got, err := s.do.Capacity(ctx, pluginID, ask)
	return api.Capacity(got), s.explain(by, err, pluginID)
}

// Health asks a plugin about problems of its storage and of the volumes in it.
func (s Storage) Health(ctx context.Context, by Caller, pluginID string) (api.PluginHealth, error) {
	got, err := s.do.Health(ctx, pluginID)
	if err != nil {
		return api.PluginHealth{}, s.explain(by, err, pluginID)
	}

	driver, registered := s.plugins.View(pluginID).Info.Driver, s.registered()
	out := api.PluginHealth{
		Storage: toFindings(volume.ByNode, got.Storage), Volumes: []api.VolumeHealth{}, More: got.More, Asked: []string{}, Silent: got.Silent,
	}
	for _, h := range got.Volumes {
		out.Volumes = append(out.Volumes, api.VolumeHealth{
			ExternalID: h.ExternalID, Volume: registered[storage{driver, h.ExternalID}], Health: toFindings(volume.ByController, h.Entries),
		})
	}

	for _, k := range got.Asked {
		out.Asked = append(out.Asked, string(k))
	}
	return out, nil
}

// Volumes calls the function each for the volumes that a plugin reports, at most limit times. If
// limit is 0, it reports all volumes. The result more tells whether the plugin has more volumes.
func (s Storage) Volumes(ctx context.Context, by Caller, pluginID string, limit int, each func(*api.StorageVolume) error) (more bool, err error) {
	driver, registered := s.plugins.View(pluginID).Info.Driver, s.registered()
	more, err = s.do.List(ctx, pluginID, limit, func(v call.StorageVolume) error {
		out := toStorage(v)
		out.Volume = registered[storage{driver, v.ExternalID}]
		return each(out)
	})
	return more, s.explain(by, err, pluginID)
}
