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
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// newSupervisor makes the supervisor and reads the plugin files, so that
// plugins are known before anything asks for them.
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
			return slices.ContainsFunc(queueStore{a.db}.Volumes(), func(r volume.Record) bool { return r.Volume.PluginID == id })
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

// knownSecrets are those that calls for a plugin's volumes carry, and for what
// forced deregisters left, as far as they can be read now.
func (a *agent) knownSecrets(pluginID string) (known []volume.Secrets) {
	for _, r := range (queueStore{a.db}).Volumes() {
		if r.Volume.PluginID == pluginID && len(r.Volume.Secrets) > 0 {
			known = append(known, a.secrets.Known(r.Volume))
		}
	}
	if left := a.scratches()[pluginID]; left != nil {
		known = append(known, a.secrets.Known(volume.Volume{Secrets: left.Secrets}))
	}
	return known
}

// pluginChanged notes a change of the state of a plugin's part, and has the
// plugin's volumes looked at when it became ready.
func (a *agent) pluginChanged(c supervisor.Change) {
	msg := c.View.News()
	if c.Part != "" {
		msg = c.Part + " is " + msg
	}
	a.events.Add(volume.Event{Type: "plugin-" + c.View.State, Plugin: c.Plugin, Part: c.Part, Message: msg})
	if c.View.Ready {
		a.queue.PluginChanged(c.Plugin)
		a.files.retry()
	}
}

// pluginSet gives each consumer the view of the plugins that it declares.
type pluginSet struct {
	*supervisor.Supervisor
	db   store
	halt string // why nothing is sent to any plugin
}

// forStep is what answers the call of one step for a volume.
func (p pluginSet) forStep(v volume.Volume, k volume.Kind) (volmgr.Plugin, error) {
	if !k.Controller() {
		return p.Client(v.PluginID)
	}
	c, err := p.Controller(v.PluginID, v.ExternalID)
	if err != nil {
		return nil, err
	}
	return controller{c}, nil
}

// controller tells the supervisor how the calls of a step end.
type controller struct{ supervisor.Controller }

// ControllerPublish attaches a volume.
func (c controller) ControllerPublish(ctx context.Context, r volume.ControllerPublishRequest) (map[string]string, error) {
	out, err := c.Controller.ControllerPublish(ctx, r)
	c.Done(err)
	return out, err
}

// ControllerUnpublish detaches it.
func (c controller) ControllerUnpublish(ctx context.Context, r volume.ControllerUnpublishRequest) error {
	err := c.Controller.ControllerUnpublish(ctx, r)
	c.Done(err)
	return err
}

// ControllerExpand makes its storage larger.
func (c controller) ControllerExpand(ctx context.Context, r volume.ExpandRequest) (volume.ExpandResult, error) {
	out, err := c.Controller.ControllerExpand(ctx, r)
	c.Done(err)
	return out, err
}

// Provisioner is provision's view of a plugin.
func (p pluginSet) Provisioner(id string) (provision.Plugin, error) { return provisioner{p, id}, nil }

// provisioner sends each call to the part of the plugin that it is for.
type provisioner struct {
	plugins pluginSet
	id      string
}

// CreateVolume asks a controller for storage.
func (p provisioner) CreateVolume(ctx context.Context, r volume.CreateVolumeRequest) (volume.CreateVolumeResult, error) {
	c, err := p.plugins.Controller(p.id, r.Name)
	if err != nil {
		return volume.CreateVolumeResult{}, err
	}
	made, err := c.CreateVolume(ctx, r)
	c.Done(err)
	return made, err
}

// DeleteVolume has a controller destroy it.
func (p provisioner) DeleteVolume(ctx context.Context, r volume.DeleteVolumeRequest) error {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return err
	}
	err = c.DeleteVolume(ctx, r)
	c.Done(err)
	return err
}

// ValidateCapabilities asks a controller about storage. It changes nothing, so
// nothing of it can come late.
func (p provisioner) ValidateCapabilities(ctx context.Context, r volume.ValidateRequest) error {
	c, err := p.plugins.Controller(p.id, "")
	if err != nil {
		return err
	}
	return c.ValidateCapabilities(ctx, r)
}

// Await waits until volumes can be created by a plugin, or says how it is
// instead. It does not wait for a plugin that does not become ready by itself. One without a controller is waited for all the same: it is to say so
// itself.
func (p pluginSet) Await(ctx context.Context, id string) error {
	for {
		changed := p.Changed(id)
		err := p.asked(id)
		if err == nil {
			return nil
		}
		if p.View(id).FinalFor(volume.CreateVolume) {
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

// only narrows a request to some parts of a plugin.
func only(w apiserver.Which) supervisor.Only {
	return supervisor.Only{Type: w.Type, Instance: w.Instance}
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
func (p pluginSet) Log(ctx context.Context, id string, w apiserver.Which, lines int, follow bool, write func([]byte) error) error {
	return p.FollowLog(ctx, id, lines, follow, write, only(w))
}

// RestartPlugin stops a plugin and starts it again; with a wait it is ready when
// that returns without an error.
func (p pluginSet) RestartPlugin(ctx context.Context, id string, w apiserver.Which, force bool, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "restart", wait, func() error { return p.Restart(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// StopPlugin stops a plugin, for good or until this agent ends; with a wait
// nothing of it runs when that returns without an error.
func (p pluginSet) StopPlugin(ctx context.Context, id string, w apiserver.Which, force, brief bool, wait time.Duration) error {
	stop := p.Stop
	if brief {
		stop = p.Pause
	}
	return p.control(ctx, "stop", wait, func() error { return stop(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStopped(ctx, id, only(w)) })
}

// StartPlugin undoes a stop; with a wait the plugin is ready when that returns
// without an error.
func (p pluginSet) StartPlugin(ctx context.Context, id string, w apiserver.Which, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "start", wait, func() error { return p.Start(id, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// RegisterPlugin takes in the text of a plugin file, which errors call name; with a
// wait the plugin is ready when that returns without an error. The id is returned
// as soon as it is known.
func (p pluginSet) RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (id, outcome string, err error) {
	var reg supervisor.Registration
	asked := time.Now()
	err = p.control(ctx, "register", wait, func() (err error) {
		reg, err = p.Register(ctx, name, text)
		return err
	}, func(ctx context.Context) error { return p.AwaitRegistered(ctx, reg, asked) })
	return reg.ID, reg.Outcome, err
}

// DeregisterPlugin forgets what was registered of a plugin; with a wait nothing
// runs of it when that returns without an error.
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

// LoadRegistered returns what was registered at run time.
func (s pluginStore) LoadRegistered() ([]volume.PluginDefinition, error) {
	return s.db.Registered(), nil
}

// Register stores a definition, on disk or not at all.
func (s pluginStore) Register(ctx context.Context, def volume.PluginDefinition) error {
	return s.db.Update(ctx, func(tx *statedb.Tx) error {
		tx.PutRegistered(def)
		return nil
	})
}

// Deregister forgets definitions, all or none.
func (s pluginStore) Deregister(ctx context.Context, defs []volume.PluginDefinition) error {
	return s.db.Update(ctx, func(tx *statedb.Tx) error {
		for _, def := range defs {
			tx.DeleteRegistered(def)
		}
		return nil
	})
}

// pluginSecrets reads the secrets of plugin files.
type pluginSecrets struct{}

// ResolveSecret reads one secret.
func (pluginSecrets) ResolveSecret(_ context.Context, ref volume.SecretRef) (volume.Secret, error) {
	return secret.Resolver{}.One(ref)
}
