package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// newSupervisor creates the supervisor and reads the plugin files, so that plugins are known before
// any other part asks for them.
func (a *agent) newSupervisor(seams Seams, host *mount.Host) (*supervisor.Supervisor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot tell where this program is: %w", err)
	}

	var client csiclient.Options
	if seams.Interceptor != nil {
		client.Interceptors = []grpc.UnaryClientInterceptor{seams.Interceptor}
	}
	var service []string

	if systemd.InService() {
		service = []string{self, launchCommand}
	}
	s := supervisor.New(supervisor.Options{
		PluginDir: a.c.PluginDir, DataDir: a.c.DataDir, RuntimeDir: a.c.RuntimeDir, NodeID: a.node.ID,
		BuiltinArgv: []string{self, localDriverCommand},
		Systemd:     a.systemd, ServiceArgv: service,
		Store: pluginStore{a.db}, Registry: pluginStore{a.db}, Secrets: pluginSecrets{}, Logger: a.log, Client: client,
		InUse: a.inUse,
		HasVolumes: func(id string) bool {
			return slices.ContainsFunc(records.WithLeftovers{Store: a.db}.Volumes(), func(r volume.Record) bool { return r.Volume.PluginID == id })
		},
		FUSE:     a.fuseClaims,
		Known:    a.knownSecrets,
		OnChange: a.pluginChanged,
		OnWarning: func(id, part, warning string) {
			a.events.Add(volume.Event{Type: "plugin-warning", Plugin: id, Part: part, Message: warning})
		},
		Host:    host,
		Observe: func(id string) csiclient.Observer { return a.metrics.Calls(id) },
	})

	if err := s.Load(); err != nil {
		return nil, err
	}

	return s, nil
}

// knownSecrets returns the secrets in calls for a plugin's volumes, leftover records and tests, as
// far as they can be read now.
func (a *agent) knownSecrets(pluginID string) (known []call.Secrets) {
	for _, r := range (records.WithLeftovers{Store: a.db}).Volumes() {
		if r.Volume.PluginID == pluginID && len(r.Volume.Secrets) > 0 {
			known = append(known, a.secrets.Known(r.Volume))
		}
	}

	if left := a.scratches()[pluginID]; left != nil {
		known = append(known, a.secrets.Known(volume.Volume{Secrets: left.Secrets}))
	}

	return known
}

// pluginChanged emits an event for a new state of a plugin's part. If the plugin became ready, it
// makes the queue look at the plugin's volumes.
func (a *agent) pluginChanged(c supervisor.Change) {
	msg := c.View.News()
	if c.Part != "" {
		msg = c.Part + " is " + msg
	}
	a.events.Add(volume.Event{Type: "plugin-" + c.View.State, Plugin: c.Plugin, Part: c.Part, Message: msg})
	if c.View.Ready {
		a.queue.PluginChanged(c.Plugin)
		a.files.Retry()
	}
}

// pluginSet implements the interfaces through which other packages use plugins.
type pluginSet struct {
	*supervisor.Supervisor

	db   records.Store
	halt string // why no call is sent to any plugin
}

// forStep returns the client for the call of one step.
func (p pluginSet) forStep(v volume.Volume, k call.Method) (volmgr.Plugin, error) {
	if k.Service() == call.Node {
		return p.Client(v.PluginID)
	}

	c, err := p.Controller(v.PluginID, v.ExternalID)
	if err != nil {
		return nil, err
	}

	return controller{c}, nil
}

// controller reports the result of each call to the supervisor.
type controller struct{ supervisor.Controller }

// ControllerPublish connects a volume to this host.
func (c controller) ControllerPublish(ctx context.Context, r call.ControllerPublishRequest) (map[string]string, error) {
	out, err := c.Controller.ControllerPublish(ctx, r)
	c.Done(err)
	return out, err
}

// ControllerUnpublish disconnects a volume from this host.
func (c controller) ControllerUnpublish(ctx context.Context, r call.ControllerUnpublishRequest) error {
	err := c.Controller.ControllerUnpublish(ctx, r)
	c.Done(err)
	return err
}

// ControllerExpand makes the storage of a volume larger.
func (c controller) ControllerExpand(ctx context.Context, r call.ExpandRequest) (call.ExpandResult, error) {
	out, err := c.Controller.ControllerExpand(ctx, r)
	c.Done(err)
	return out, err
}

// Provisioner returns the calls that provision makes to a plugin.
func (p pluginSet) Provisioner(id string) (provision.Plugin, error) { return provisioner{p, id}, nil }

// provisioner sends each call to the right part of the plugin.
type provisioner struct {
	plugins pluginSet
	id      string
}

// CreateVolume asks a controller for storage.
func (p provisioner) CreateVolume(ctx context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	c, err := p.plugins.Controller(p.id, r.Name)
	if err != nil {
		return call.CreateVolumeResult{}, err
	}

	made, err := c.CreateVolume(ctx, r)
	c.Done(err)
	return made, err
}

// DeleteVolume asks a controller to destroy storage.
func (p provisioner) DeleteVolume(ctx context.Context, r call.DeleteVolumeRequest) error {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return err
	}

	err = c.DeleteVolume(ctx, r)
	c.Done(err)
	return err
}

// ValidateCapabilities asks a controller about storage. It does not report to Done, because a call
// that changes nothing can have no late effect.
func (p provisioner) ValidateCapabilities(ctx context.Context, r call.ValidateRequest) error {
	c, err := p.plugins.Controller(p.id, "")
	if err != nil {
		return err
	}
	return c.ValidateCapabilities(ctx, r)
}

// Await waits until a plugin can create volumes. If that does not happen, it returns the plugin's
// state as an error, at once for a plugin that cannot become ready by itself. Await also waits for
// a plugin without a controller; the create call itself then reports that.
func (p pluginSet) Await(ctx context.Context, id string) error {
	for {
		changed := p.Changed(id)
		err := p.asked(id)
		if err == nil {
			return nil
		}
		if p.View(id).FinalFor(call.CreateVolume) {
			return err
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

func (p pluginSet) asked(id string) error {
	v := p.View(id)
	if v.Apart != nil && v.Info.HasController {
		_, err := p.Controller(id, "")
		return err
	}

	_, err := p.Client(id)
	return err
}

// List returns all plugins for the API.
func (p pluginSet) List() []api.Plugin {
	out := []api.Plugin{}
	for _, st := range p.Statuses() {
		out = append(out, p.show(st))
	}
	return out
}

// Get returns one plugin for the API.
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
		ControllersHealthy: st.Controllers.Healthy, ControllersExpected: st.Controllers.Expected,
		NodesHealthy: st.Nodes.Healthy, NodesExpected: st.Nodes.Expected,
		Warnings: st.Warnings,
	}

	deadlock := p.deadlock(st)
	if deadlock != "" {
		out.Warnings = append(slices.Clone(out.Warnings), deadlock)
	}
	for _, part := range st.Parts {
		shown := showPart(part)
		if deadlock != "" && byDocker(part) {
			shown.Warnings = append(slices.Clone(shown.Warnings), deadlock)
		}
		out.Parts = append(out.Parts, shown)
	}

	for _, r := range p.db.Volumes() {
		if r.Volume.PluginID != st.ID {
			continue
		}

		out.Volumes = append(out.Volumes, r.Volume.ID)
		if r.Held() {
			out.Staged++
		}
		out.FUSEClaims += fuseClaims(r)
	}

	slices.Sort(out.Volumes)
	return out
}

func showPart(st supervisor.Status) api.PluginPart {
	return api.PluginPart{
		Type: st.Type, Instance: st.Instance, State: string(st.State), Reason: st.Reason, Since: st.Since, Next: st.Next,
		Restarts: st.Restarts, PID: st.PID, Socket: st.Socket, Runner: st.Runner, File: st.File, Registered: st.Registered, Version: st.Info.Version,
		LastExit: st.LastExit, LogFile: st.LogFile, LastLog: st.LastLog, Pending: st.Pending, Running: st.Running, Wanted: st.Wanted,
		Warnings: st.Warnings,
	}
}

// only converts an API request for some parts of a plugin.
func only(w apiserver.Which) supervisor.Only {
	return supervisor.Only{Type: w.Type, Instance: w.Instance}
}

// Tail returns the last lines of a plugin's log.
func (p pluginSet) Tail(id string, lines int) []string {
	tail, err := p.LogTail(id, lines)
	if err != nil {
		return nil // there is no log, or another program keeps it
	}
	return tail
}

// Log sends a plugin's log to write.
func (p pluginSet) Log(ctx context.Context, id string, w apiserver.Which, lines int, follow bool, write func([]byte) error) error {
	return p.FollowLog(ctx, id, lines, follow, write, only(w))
}

// RestartPlugin stops a plugin and starts it again. With a wait, the plugin is ready when
// RestartPlugin returns without an error.
func (p pluginSet) RestartPlugin(ctx context.Context, id string, w apiserver.Which, force bool, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "restart", wait, func() error { return p.Restart(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// StopPlugin stops a plugin until StartPlugin or, with brief, until the next agent starts. With a
// wait, no process of the plugin runs when StopPlugin returns without an error.
func (p pluginSet) StopPlugin(ctx context.Context, id string, w apiserver.Which, force, brief bool, wait time.Duration) error {
	stop := p.Stop
	if brief {
		stop = p.Pause
	}
	return p.control(ctx, "stop", wait, func() error { return stop(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStopped(ctx, id, only(w)) })
}

// StartPlugin undoes a stop. With a wait, the plugin is ready when StartPlugin returns without an
// error.
func (p pluginSet) StartPlugin(ctx context.Context, id string, w apiserver.Which, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "start", wait, func() error { return p.Start(id, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// RegisterPlugin registers the text of a plugin file. Errors refer to the text as name. With a
// wait, the plugin is ready when RegisterPlugin returns without an error. The id is returned even
// with an error, if it was known by then.
func (p pluginSet) RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (id, outcome string, err error) {
	var reg supervisor.Registration
	asked := time.Now()
	err = p.control(ctx, "register", wait, func() (err error) {
		reg, err = p.Register(ctx, name, text)
		return err
	}, func(ctx context.Context) error { return p.AwaitRegistered(ctx, reg, asked) })

	return reg.ID, reg.Outcome, err
}

// DeregisterPlugin deletes the run-time registration of a plugin. With a wait, no registered part
// of it runs when DeregisterPlugin returns without an error.
func (p pluginSet) DeregisterPlugin(ctx context.Context, id string, force bool, wait time.Duration) error {
	var gone func(context.Context) error
	return p.control(ctx, "deregister", wait, func() (err error) {
		gone, err = p.Deregister(ctx, id, force)
		return err
	}, func(ctx context.Context) error { return gone(ctx) })
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

// pluginStore adapts the state database for the supervisor.
type pluginStore struct{ db records.Store }

// LoadPlugins returns all records.
func (s pluginStore) LoadPlugins() ([]volume.PluginRecord, error) {
	return statedb.Plugins.All(s.db), nil
}

// SavePlugin stores a record durably.
func (s pluginStore) SavePlugin(ctx context.Context, rec volume.PluginRecord) error {
	return s.db.Happened(ctx, func(tx *statedb.Tx) error {
		statedb.Plugins.Put(tx, rec)
		return nil
	})
}

// LoadRegistered returns the definitions that were registered at run time.
func (s pluginStore) LoadRegistered() ([]volume.PluginDefinition, error) {
	return statedb.Registered.All(s.db), nil
}

// Register stores a definition. Either it is on disk, or nothing changes.
func (s pluginStore) Register(ctx context.Context, def volume.PluginDefinition) error {
	return s.db.Update(ctx, func(tx *statedb.Tx) error {
		statedb.Registered.Put(tx, def)
		return nil
	})
}

// Deregister deletes definitions, all or none.
func (s pluginStore) Deregister(ctx context.Context, defs []volume.PluginDefinition) error {
	return s.db.Update(ctx, func(tx *statedb.Tx) error {
		for _, def := range defs {
			statedb.Registered.Remove(tx, def)
		}
		return nil
	})
}

// pluginSecrets reads the secrets of plugin files.
type pluginSecrets struct{}

// ResolveSecret reads one secret.
func (pluginSecrets) ResolveSecret(_ context.Context, ref call.SecretRef) (call.Secret, error) {
	return secret.Resolver{}.One(ref)
}
