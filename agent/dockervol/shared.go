package dockervol

import (
	"context"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the usual names of the two plugins in the runtimes. They are the names of the sockets.
const (
	hostPlugin   = "csi"
	sharedPlugin = "csi-shared"
)

// These are the scopes of docker's plugins. Docker treats a volume with the scope global as one
// volume of all hosts.
const (
	scopeLocal  = "local"
	scopeGlobal = "global"
)

// scope returns the scope of the plugin that a runtime has called.
func (c Caller) scope() string {
	if c.Shared {
		return scopeGlobal
	}
	return scopeLocal
}

// plugin returns the usual name of the plugin that a runtime has called.
func (c Caller) plugin() string { return pluginOf(c.Shared) }

func pluginOf(shared bool) string {
	if shared {
		return sharedPlugin
	}
	return hostPlugin
}

// named returns a runtime's volume that belongs to the plugin that the runtime has called.
func (s *Service) named(from Caller, name string) (volume.RuntimeVolume, bool) {
	v, ok := s.Store.RuntimeVolume(from.Runtime, name)
	return v, ok && v.Shared == from.Shared
}

// record returns the record of the volume with the given id. For the plugin for shared volumes, it
// asks the cluster if this host does not use the volume.
func (s *Service) record(ctx context.Context, from Caller, id string) (volume.Record, bool, error) {
	r, ok := s.Store.Volume(id)
	if !from.Shared || ok && (!r.Volume.Shared || r.Held()) {
		return r, ok, nil
	}

	if err := s.Fetch(ctx, id); err != nil {
		return r, ok, err
	}
	r, ok = s.Store.Volume(id)
	return r, ok, nil
}

// checkPlugin refuses a volume that belongs to the other plugin. A runtime treats the volumes of one
// plugin as volumes of this host, and those of the other plugin as volumes of all hosts.
func checkPlugin(from Caller, v volume.Volume) error {
	if v.Shared == from.Shared {
		return nil
	}

	hint := suggest.Command("%s volume create -d %s %s", from.Runtime, pluginOf(v.Shared), v.ID)
	if v.Shared {
		return volume.Errorf(volume.ErrRefused, "volume %q is shared by the hosts of the cluster, and the plugin %s has the volumes of this host only", v.ID, from.plugin()).WithHint("%s", hint)
	}
	return volume.Errorf(volume.ErrRefused, "volume %q belongs to this host, and the plugin %s has shared volumes only", v.ID, from.plugin()).WithHint("%s", hint)
}

// checkName refuses a name that the runtime uses for a volume of the other plugin.
func checkName(from Caller, had volume.RuntimeVolume) error {
	if had.Shared == from.Shared {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "%s already has volume %q of the plugin %s", had.Runtime, had.Name, pluginOf(had.Shared)).
		WithHint("%s first, or choose another name", suggest.Command("%s volume rm %s", had.Runtime, had.Name))
}
