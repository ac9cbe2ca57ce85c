package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// newSupervisor makes the supervisor and reads the plugin files, so that
// plugins are known before anything asks for them.
func (a *agent) newSupervisor(seams Seams) (*supervisor.Supervisor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot tell where this program is: %w", err)
	}
	var client csiclient.Options
	if seams.Interceptor != nil {
		client.Interceptors = []grpc.UnaryClientInterceptor{seams.Interceptor}
	}
	s := supervisor.New(supervisor.Options{
		PluginDir: a.c.PluginDir, DataDir: a.c.DataDir, RuntimeDir: a.c.RuntimeDir, NodeID: a.node.ID,
		BuiltinArgv: []string{self, localDriverCommand},
		Store:       pluginStore{a.db}, Secrets: pluginSecrets{}, Logger: a.log, Client: client,
		InUse:    a.inUse,
		Known:    a.knownSecrets,
		OnChange: a.pluginChanged,
	})
	if err := s.Load(); err != nil {
		return nil, err
	}
	return s, nil
}

// inUse names the volumes of which anything is, or may be, on this host through
// a plugin.
func (a *agent) inUse(pluginID string) (ids []string) {
	for _, r := range (queueStore{a.db}).Volumes() {
		if r.Volume.PluginID == pluginID && r.Held() {
			ids = append(ids, r.Volume.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// knownSecrets are those that calls for a plugin's volumes carry, and for what
// forced deregisters left, as far as they can be read now.
func (a *agent) knownSecrets(pluginID string) (known []volume.Secrets) {
	for _, r := range (queueStore{a.db}).Volumes() {
		if r.Volume.PluginID != pluginID || len(r.Volume.Secrets) == 0 {
			continue
		}
		if secrets, err := (secret.Resolver{}).Resolve(r.Volume.Secrets); err == nil {
			known = append(known, secrets)
		}
	}
	return known
}

// pluginChanged notes a change of a plugin's state, and has its volumes looked
// at when it became ready.
func (a *agent) pluginChanged(id string) {
	v := a.plugins.View(id)
	msg := v.State
	if v.Reason != "" && v.Reason != v.State {
		msg += ": " + v.Reason
	}
	a.events.Add(volume.Event{Type: "plugin-" + v.State, Plugin: id, Message: msg})
	if v.Ready {
		a.queue.PluginChanged(id)
	}
}

// pluginSet gives each consumer the view of the plugins that it declares.
type pluginSet struct {
	*supervisor.Supervisor
	db   store
	halt string // why nothing is sent to any plugin
}

func (p pluginSet) node(id string) (volmgr.Plugin, error) { return p.Client(id) }

// Provisioner is provision's view of a plugin that is ready.
func (p pluginSet) Provisioner(id string) (provision.Plugin, error) { return p.Client(id) }

// Await waits until a plugin is ready, or says how it is instead.
func (p pluginSet) Await(ctx context.Context, id string) error {
	for {
		changed := p.Changed(id)
		_, err := p.Client(id)
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// List and Get show plugins on the wire.
func (p pluginSet) List() []api.Plugin {
	out := []api.Plugin{}
	for _, st := range p.Statuses() {
		out = append(out, p.show(st))
	}
	return out
}

// Get shows one plugin.
func (p pluginSet) Get(id string) (api.Plugin, bool) {
	st, err := p.Status(id)
	if err != nil {
		return api.Plugin{}, false
	}
	return p.show(st), true
}

func (p pluginSet) show(st supervisor.Status) api.Plugin {
	out := api.Plugin{
		ID: st.ID, Type: st.Type, Runner: st.Runner, Provider: st.Info.Driver, Version: st.Info.Version,
		State: string(st.State), Reason: st.Reason, Since: st.Since, Next: st.Next, PID: st.PID, Restarts: st.Restarts,
		NodeID: st.Info.NodeID, Topology: st.Info.Topology, MaxVolumes: st.Info.MaxVolumes, Volumes: []string{},
		ControllerCapabilities: st.Info.ControllerCaps, NodeCapabilities: st.Info.NodeCaps,
		Socket: st.Socket, LogFile: st.LogFile, LastExit: st.LastExit, LastLog: st.LastLog, Pending: st.Pending,
	}
	for _, r := range p.db.Volumes() {
		if r.Volume.PluginID != st.ID {
			continue
		}
		out.Volumes = append(out.Volumes, r.Volume.ID)
		if r.Held() {
			out.Staged++
		}
	}
	slices.Sort(out.Volumes)
	return out
}

// Tail returns the last lines of a plugin's log.
func (p pluginSet) Tail(id string, lines int) []string {
	tail, err := p.LogTail(id, lines)
	if err != nil {
		return nil // there is none, or somebody else keeps it
	}
	return tail
}

// Log sends a plugin's log.
func (p pluginSet) Log(ctx context.Context, id string, lines int, follow bool, write func([]byte) error) error {
	return p.FollowLog(ctx, id, lines, follow, write)
}

// RestartPlugin stops a plugin and starts it again; with a wait it is ready when
// that returns without an error.
func (p pluginSet) RestartPlugin(ctx context.Context, id string, force bool, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "restart", wait, func() error { return p.Restart(id, force) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked) })
}

// StopPlugin stops a plugin for good; with a wait nothing of it runs when that
// returns without an error.
func (p pluginSet) StopPlugin(ctx context.Context, id string, force bool, wait time.Duration) error {
	return p.control(ctx, "stop", wait, func() error { return p.Stop(id, force) },
		func(ctx context.Context) error { return p.AwaitStopped(ctx, id) })
}

// StartPlugin undoes a stop; with a wait the plugin is ready when that returns
// without an error.
func (p pluginSet) StartPlugin(ctx context.Context, id string, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "start", wait, func() error { return p.Start(id) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked) })
}

func (p pluginSet) control(ctx context.Context, verb string, wait time.Duration, ask func() error, await func(context.Context) error) error {
	if p.halt != "" {
		return volume.Errorf(volume.ErrRefused, "cannot %s a plugin: %s", verb, p.halt)
	}
	if err := ask(); err != nil || wait <= 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return await(ctx)
}

// pluginStore is the supervisor's view of the state database.
type pluginStore struct{ db store }

// LoadPlugins returns all records.
func (s pluginStore) LoadPlugins() ([]volume.PluginRecord, error) { return s.db.Plugins(), nil }

// SavePlugin stores a record durably.
func (s pluginStore) SavePlugin(ctx context.Context, rec volume.PluginRecord) error {
	return s.db.Happened(ctx, func(tx *statedb.Tx) error {
		tx.PutPlugin(rec.ID, rec)
		return nil
	})
}

// pluginSecrets reads the secrets of plugin files.
type pluginSecrets struct{}

// ResolveSecret reads one secret.
func (pluginSecrets) ResolveSecret(_ context.Context, ref volume.SecretRef) (volume.Secret, error) {
	return secret.Resolver{}.One(ref)
}
