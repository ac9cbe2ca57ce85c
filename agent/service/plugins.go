package service

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// PluginSet reports the state of plugins and controls them. It returns API types, because its
// implementation knows both the domain and the API.
type PluginSet interface {
	PluginViews
	List() []api.Plugin
	Get(id string) (api.Plugin, bool)
	Changed(id string) <-chan struct{}

	// Log writes the last lines of a plugin's log. With follow, it also writes new lines until ctx
	// ends.
	Log(ctx context.Context, id string, w api.Part, lines int, follow bool, write func([]byte) error) error

	// RestartPlugin, StopPlugin and StartPlugin wait for the plugin, for at most the duration wait;
	// with 0 they do not wait. While volumes are in use through the plugin, RestartPlugin and
	// StopPlugin need force.
	RestartPlugin(ctx context.Context, id string, w api.Part, force bool, wait time.Duration) error

	// A brief stop ends when the agent restarts: the agent then starts the plugin again.
	StopPlugin(ctx context.Context, id string, w api.Part, force, brief bool, wait time.Duration) error
	StartPlugin(ctx context.Context, id string, w api.Part, wait time.Duration) error

	// RegisterPlugin registers the text of a plugin file. Its errors use name as the name of the
	// file. It returns the plugin's id as soon as the id is known, even together with an error.
	// DeregisterPlugin removes all registrations of an id.
	RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (id, outcome string, err error)
	DeregisterPlugin(ctx context.Context, id string, force bool, wait time.Duration) error
}

// Plugins answers requests about plugins.
type Plugins struct {
	view
	set PluginSet
}

// List returns all plugins. It omits the lines of their logs if the caller may not read them.
func (p Plugins) List(by Caller) []api.Plugin { return visible(by, p.set.List()...) }

// visible removes the lines of logs from plugins if the caller may not read them.
func visible(by Caller, all ...api.Plugin) []api.Plugin {
	if by.MayWrite {
		return all
	}

	for i := range all {
		all[i].LastLog, all[i].Parts = nil, slices.Clone(all[i].Parts)
		for j := range all[i].Parts {
			all[i].Parts[j].LastLog = nil
		}
	}
	return all
}

// Get returns a plugin. If state is not empty, it waits until the plugin is in that state, for at
// most the duration wait.
func (p Plugins) Get(ctx context.Context, by Caller, id, state string, wait time.Duration) (api.Plugin, error) {
	if err := checkAwaited(state, api.PluginReady); err != nil {
		return api.Plugin{}, err
	}

	over, cancel := context.WithTimeout(ctx, wait)
	defer cancel()

	for {
		if _, err := p.get(id); err != nil {
			return api.Plugin{}, err
		}

		changed := p.set.Changed(id)
		out, err := p.get(id)
		if err != nil || state == "" || out.State == state {
			return visible(by, out)[0], err
		}

		select {
		case <-changed:
		case <-over.Done():
			v := p.plugins.View(id)
			hint := v.LogRemedy(id)
			if v.Stopped {
				hint = v.Remedy(id)
			}
			return api.Plugin{}, asAPI(volume.Errorf(volume.ErrTimeout, "plugin %q is %s, not %s: %s", id, out.State, state, out.Reason).WithRemedy(hint))
		}
	}
}

// get returns the description of a plugin.
func (p Plugins) get(id string) (api.Plugin, error) {
	out, ok := p.set.Get(id)
	if !ok {
		return out, asAPI(volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list"))
	}
	return out, nil
}

// maxLines limits the number of log lines in one answer.
const maxLines = 10000

// Log writes the last lines of a plugin's log. With follow, it also writes new lines until ctx
// ends.
func (p Plugins) Log(ctx context.Context, by Caller, id string, parts api.Part, lines int, follow bool, write func([]byte) error) error {
	if err := p.checkChange(by, id, parts); err != nil {
		return err
	}
	return asAPI(p.set.Log(ctx, id, parts, min(lines, maxLines), follow, write))
}

// checkChange checks the caller's permission. It then checks that the plugin exists and that the
// requested type of part is valid.
func (p Plugins) checkChange(by Caller, id string, parts api.Part) error {
	if err := by.CheckWrite(); err != nil {
		return err
	}

	switch parts.Type {
	case "", api.PartNode, api.PartController, api.PartMonolith:
		_, err := p.get(id)
		return err
	default:
		return asAPI(volume.Errorf(volume.ErrInvalid, "type=%q is none of node, controller, monolith", parts.Type))
	}
}

// Control describes how to restart, stop or start a plugin.
type Control struct {
	Parts api.Part // the parts of the plugin to which the action applies

	// Force permits a restart or stop while the plugin's volumes are in use.
	Force bool

	// Brief makes a stop end when the agent restarts. The agent then starts the plugin again.
	Brief bool
	Wait  time.Duration // the time limit for waiting for the plugin
}

// Restart restarts a plugin, and returns its state afterwards.
func (p Plugins) Restart(ctx context.Context, by Caller, id string, how Control) (api.Plugin, error) {
	return p.control(by, id, how, func() error { return p.set.RestartPlugin(ctx, id, how.Parts, how.Force, how.Wait) })
}

// Stop stops a plugin, and returns its state afterwards.
func (p Plugins) Stop(ctx context.Context, by Caller, id string, how Control) (api.Plugin, error) {
	return p.control(by, id, how, func() error { return p.set.StopPlugin(ctx, id, how.Parts, how.Force, how.Brief, how.Wait) })
}

// Start starts a plugin, and returns its state afterwards.
func (p Plugins) Start(ctx context.Context, by Caller, id string, how Control) (api.Plugin, error) {
	return p.control(by, id, how, func() error { return p.set.StartPlugin(ctx, id, how.Parts, how.Wait) })
}

// control checks a request, calls do, and returns the plugin's state afterwards.
func (p Plugins) control(by Caller, id string, how Control, do func() error) (api.Plugin, error) {
	if err := p.checkChange(by, id, how.Parts); err != nil {
		return api.Plugin{}, err
	}
	if err := do(); err != nil {
		return api.Plugin{}, p.explain(by, err, id)
	}
	return p.get(id)
}

// Register registers the text of a plugin file. The text reaches the parser unchanged, so that
// errors contain the right line numbers.
func (p Plugins) Register(ctx context.Context, by Caller, name string, text []byte, wait time.Duration) (api.PluginResult, error) {
	if err := by.CheckWrite(); err != nil {
		return api.PluginResult{}, err
	}

	id, outcome, err := p.set.RegisterPlugin(ctx, cmp.Or(name, "the plugin file"), text, wait)
	if err != nil {
		return api.PluginResult{}, p.explain(by, err, id)
	}
	out, err := p.get(id)
	return api.PluginResult{Outcome: outcome, Plugin: out}, err
}

// Deregister removes all registrations of a plugin. It returns when no process of the plugin is
// running.
func (p Plugins) Deregister(ctx context.Context, by Caller, id string, force bool, wait time.Duration) (api.Done, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Done{}, err
	}
	return api.Done{}, asAPI(p.set.DeregisterPlugin(ctx, id, force, wait))
}
