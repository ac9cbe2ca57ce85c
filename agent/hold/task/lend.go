package task

import (
	"cmp"
	"context"
	"fmt"
	"time"

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

// Detacher returns the client that detaches any host from a shared volume, with the secrets and the deadline
// of its calls. It is the controller of this host, if that is ready and this host can read the secrets. Otherwise
// other hosts make the calls, and resolve the secrets themselves. This host need not have the plugin at all.
func (s *Service) Detacher(ctx context.Context, v volume.Volume) (p call.Caller, secrets call.Secrets, within time.Duration, err error) {
	view := s.View(v.PluginID)
	var lack string
	switch {
	case view.LacksController():
		lack = fmt.Sprintf("plugin %q has no controller on this host", v.PluginID)
	case !view.ReadyFor(call.ControllerUnpublish):
		lack = view.Lacks(v.PluginID, call.ControllerUnpublish)
	case view.Info.Driver != v.Driver:
		lack = fmt.Sprintf("plugin %q of this host is not of driver %s", v.PluginID, v.Driver)
	default:
		secrets, err = s.Secrets(v)
		if err == nil {
			p, err = s.Plugin(v, call.ControllerUnpublish)
			return p, secrets, view.ControllerTimeout, err
		}
		lack = err.Error()
	}

	// The known peers may be outdated, because this host follows them only while it needs them.
	if err := s.refreshPeers(ctx); err != nil {
		return nil, nil, 0, fmt.Errorf("%s, and this host cannot look for a controller on the other hosts: %w", lack, err)
	}
	hosts := s.executors(v)
	if len(hosts) == 0 {
		return nil, nil, 0, volume.Errorf(volume.ErrPluginUnavailable, "%s, and no other live host runs a controller of driver %s", lack, v.Driver)
	}
	return Remote{Service: s, Volume: v}, nil, s.timeout(hosts[0], v), nil
}
