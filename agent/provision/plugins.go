package provision

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// pluginFinder finds the plugin for an operation, and waits until it is ready. For a shared volume, a
// host without a controller uses the controllers of other hosts.
type pluginFinder struct{ o Options }

// pluginWait limits how long a request waits for a plugin that is starting.
const pluginWait = 30 * time.Second

// pluginInfo returns the name, version and capabilities of a plugin. If the plugin is down,
// pluginInfo returns the values from its last start.
func (f pluginFinder) pluginInfo(ctx context.Context, id string) (plugin.Info, error) {
	v, err := f.view(id)
	if err != nil || v.Info.Driver != "" {
		return v.Info, err
	}
	return f.awaitInfo(ctx, id)
}

// awaitPlugin waits until the plugin is ready, and returns its name, version and capabilities.
func (f pluginFinder) awaitPlugin(ctx context.Context, id string) (plugin.Info, error) {
	if _, err := f.view(id); err != nil {
		return plugin.Info{}, err
	}
	return f.awaitInfo(ctx, id)
}

// view returns the state of a plugin. It fails if no such plugin is configured, or if the agent
// calls no plugin.
func (f pluginFinder) view(id string) (plugin.View, error) {
	if err := f.checkHalt(id); err != nil {
		return plugin.View{}, err
	}

	v := f.o.Plugins.View(id)
	if !v.Known {
		return plugin.View{}, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}

	return v, nil
}

func (f pluginFinder) awaitInfo(ctx context.Context, id string) (plugin.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginWait)
	defer cancel()

	if err := f.o.Plugins.Await(ctx, id); err != nil {
		return plugin.Info{}, err
	}

	return f.o.Plugins.View(id).Info, nil
}

// checkHalt returns an error if the agent calls no plugin.
func (f pluginFinder) checkHalt(pluginID string) error {
	if f.o.Halt == "" {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "cannot call plugin %q: %s", pluginID, f.o.Halt)
}

// provisioner returns the caller for the calls that create, change or delete a volume, and the secrets
// for these calls.
func (f pluginFinder) provisioner(v volume.Volume) (call.Caller, call.Secrets, error) {
	return f.caller(v, f.o.Plugins.Provisioner)
}

// modifyCaller returns the caller for the call that modifies a volume, and the secrets for the call.
func (f pluginFinder) modifyCaller(v volume.Volume) (call.Caller, call.Secrets, error) {
	return f.caller(v, f.o.Plugins.Reporter)
}

// caller returns the plugin of this host, as local finds it, and the secrets of a volume. If other hosts
// must make the controller calls for the volume, it returns no secrets, because these hosts resolve
// them.
func (f pluginFinder) caller(v volume.Volume, local func(string) (call.Caller, error)) (call.Caller, call.Secrets, error) {
	if f.remote(v) {
		return f.o.Controllers.Caller(v), nil, nil
	}

	p, err := local(v.PluginID)
	if err != nil {
		return nil, nil, err
	}
	secrets, err := f.o.Secrets(v)
	return p, secrets, err
}

// checkSecrets returns an error if this host must resolve the secrets of a volume for a controller
// call, and cannot.
func (f pluginFinder) checkSecrets(v volume.Volume) error {
	if f.remote(v) {
		return nil
	}
	_, err := f.o.Secrets(v)
	return err
}

// remote reports whether other hosts must make the controller calls for a volume, because the plugin of
// this host has no controller.
func (f pluginFinder) remote(v volume.Volume) bool {
	return v.Shared && f.o.Controllers != nil && f.o.Plugins.View(v.PluginID).LacksController()
}

// awaitController waits until a controller of the plugin is ready for a volume, and returns the
// capabilities of the plugin. For a shared volume, the controller may run on another host.
func (f pluginFinder) awaitController(ctx context.Context, v volume.Volume) (plugin.Info, error) {
	if _, err := f.pluginInfo(ctx, v.PluginID); err != nil {
		return plugin.Info{}, err
	}
	if !f.remote(v) {
		return f.awaitPlugin(ctx, v.PluginID)
	}

	ctx, cancel := context.WithTimeout(ctx, pluginWait)
	defer cancel()
	view, err := f.o.Controllers.AwaitController(ctx, v, f.o.Plugins.View(v.PluginID))
	return view.Info, err
}

// controllerTimeout returns the deadline of a controller call for a volume.
func (f pluginFinder) controllerTimeout(v volume.Volume) time.Duration {
	view := f.o.Plugins.View(v.PluginID)
	if f.remote(v) {
		view = f.o.Controllers.Borrow(v, view)
	}
	return view.ControllerTimeout
}

// checkControllerHere returns an error if only other hosts have a controller of a plugin. The agent
// passes no call of the given kind to other hosts.
func (f pluginFinder) checkControllerHere(ctx context.Context, pluginID, action string) error {
	view := f.o.Plugins.View(pluginID)
	if f.o.Controllers == nil || !view.LacksController() {
		return nil
	}

	hosts, err := f.o.Controllers.Hosts(ctx, pluginID, view.Info.Driver)
	if err != nil {
		return volume.Errorf(volume.ErrPluginUnavailable, "cannot find a host with a controller of plugin %q: %v", pluginID, err)
	}
	if len(hosts) == 0 {
		return nil // as far as the cluster knows, the driver has no controller
	}
	return volume.Errorf(volume.ErrRefused, "plugin %q has no controller on this host, so it cannot %s here", pluginID, action).
		WithHint("repeat the command on a host with a controller: %s", strings.Join(hosts, ", "))
}

// mostLost limits how often a call is made again because the host that made it is gone.
const mostLost = 3

// repeatLost makes a call for a shared volume, and makes it again if the host that made it is gone. Each
// such call can be repeated, and its intent is in the definition.
func repeatLost(ctx context.Context, try func() error) error {
	for lost := 1; ; lost++ {
		err := try()
		var ce *volume.CallError
		if !errors.As(err, &ce) || !ce.Lost || lost > mostLost || ctx.Err() != nil {
			return err
		}
	}
}
