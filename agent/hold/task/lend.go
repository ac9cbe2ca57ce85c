package task

import (
	"cmp"
	"context"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Controllers are the controllers of other hosts, for package provision.
type Controllers struct{ *Service }

// Caller returns the client by which other hosts make the controller calls for a shared volume.
func (s Controllers) Caller(v volume.Volume) call.Caller {
	return Remote{Service: s.Service, Volume: v}
}

// AwaitController waits until this host knows whether another host can make the controller calls for a
// volume. The plugin of this host, with the given view, has no controller. AwaitController returns the
// view with the controllers of the other hosts, or an ErrPluginUnavailable if there is none.
func (s Controllers) AwaitController(ctx context.Context, v volume.Volume, view plugin.View) (plugin.View, error) {
	driver := cmp.Or(view.Info.Driver, v.Driver)
	for {
		// The known peers may be outdated, because this host follows them only while it needs them.
		if err := s.updatePeers(ctx); err != nil {
			return view, volume.Errorf(volume.ErrPluginUnavailable, "cannot look for a controller of driver %s on the other hosts: %v", driver, err)
		}

		all := s.known()
		hosts, exists := all.executors(s.Node, v.PluginID, driver)
		silent := all.silent(s.Node, v.PluginID)
		var failed *volume.Error
		switch {
		case len(hosts) > 0:
			return s.Borrow(v, view), nil
		case silent != "":
			failed = volume.Errorf(volume.ErrPluginUnavailable, "%s", silentWords(silent, v.PluginID, driver)).WithHint("start the agent of host %s", silent)
		case exists:
			return view, volume.Errorf(volume.ErrPluginUnavailable, "%s", all.noLiveController(v.PluginID, driver))
		default:
			return view, volume.Errorf(volume.ErrPluginUnavailable, "no host of the cluster runs a controller of driver %s (plugin %q)", driver, v.PluginID).
				WithHint("run the controller part of the plugin on one host of the cluster")
		}

		if backoff.Pause(ctx, s.Every); ctx.Err() != nil {
			return view, failed
		}
	}
}

// Hosts returns the hosts that have a controller of a plugin, even if they are gone now.
func (s Controllers) Hosts(ctx context.Context, pluginID, driver string) ([]string, error) {
	all, err := s.readPeers(ctx)
	return all.controllers(pluginID, driver), err
}

// known returns the peers as this host has read them last.
func (s Controllers) known() peers {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers
}
