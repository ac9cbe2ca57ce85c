package agent

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// newTests connects the tests of plugins with this host.
func (a *agent) newTests(plugins pluginSet, host *mount.Host, paths *volmgr.Manager) *plugintest.Service {
	return &plugintest.Service{
		Plugins: testedPlugins{plugins}, Records: testRecords{a}, Host: testHost{host, a.c.mountRoot()}, Paths: paths,
		Secrets: a.secrets.Of, Events: a.events.Add, Ended: a.plugins.Released, Halt: a.halt,
	}
}

// scratches returns the volumes of running and interrupted tests, by plugin.
func (a *agent) scratches() map[string]*volume.Scratch {
	all := map[string]*volume.Scratch{}
	for _, p := range statedb.Plugins.All(a.db) {
		if p.Scratch != nil {
			all[cmp.Or(p.Plugin, p.ID)] = p.Scratch
		}
	}

	return all
}

// recoverTests undoes tests that an earlier agent did not finish.
func (a *agent) recoverTests(ctx context.Context) {
	var wg sync.WaitGroup
	for id := range a.scratches() {
		wg.Go(func() {
			if err := a.tests.Recover(ctx, id); err != nil && ctx.Err() == nil {
				a.log.Warn("what a test of a plugin left is still there", "plugin", id, "error", err)
			}
		})
	}

	wg.Wait()
}

// cutTests returns a problem for each interrupted test that is not undone.
func (a *agent) cutTests() (all []api.Problem) {
	for id, left := range a.scratches() {
		if a.tests.Testing(id) {
			continue
		}

		all = append(all, api.Problem{
			Subject: id, Since: left.Begun, Message: fmt.Sprintf("a test of the plugin left volume %q, which is not undone", plugintest.Name(left)),
			Command: suggest.Command("volctl plugin test %s", id),
		})
	}

	return all
}

// testedPlugins adapts the plugins for plugintest.
type testedPlugins struct{ pluginSet }

// Tested returns a plugin that is ready.
func (p testedPlugins) Tested(id string) (plugintest.Plugin, error) {
	c, err := p.Client(id)
	if err != nil {
		return nil, err
	}
	return testedPlugin{c, provisioner{p.pluginSet, id}}, nil
}

// Await waits until all services of a plugin are ready, or returns the plugin's state as an error.
func (p testedPlugins) Await(ctx context.Context, id string) error {
	for {
		changed := p.Changed(id)
		v := p.View(id)
		if v.Ready {
			return nil
		}

		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}

		if err := p.asked(id); err != nil {
			return err
		}

		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q is %s: %s", id, v.State, v.Reason).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	}
}

// testedPlugin sends each call to the right part of the plugin.
type testedPlugin struct {
	*csiclient.Client
	provisioner
}

// CreateVolume asks a controller for storage.
func (p testedPlugin) CreateVolume(ctx context.Context, r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
	return p.provisioner.CreateVolume(ctx, r)
}

// DeleteVolume asks a controller to destroy storage.
func (p testedPlugin) DeleteVolume(ctx context.Context, r call.DeleteVolumeRequest) error {
	return p.provisioner.DeleteVolume(ctx, r)
}

// NodeStats asks the node part how full a volume is.
func (p testedPlugin) NodeStats(ctx context.Context, r call.StatsRequest) (call.Stats, error) {
	return p.Client.NodeStats(ctx, r)
}

// ControllerPublish asks a controller to connect a volume to this host.
func (p testedPlugin) ControllerPublish(ctx context.Context, r call.ControllerPublishRequest) (map[string]string, error) {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return nil, err
	}
	return controller{c}.ControllerPublish(ctx, r)
}

// ControllerUnpublish asks a controller to disconnect a volume from this host.
func (p testedPlugin) ControllerUnpublish(ctx context.Context, r call.ControllerUnpublishRequest) error {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return err
	}
	return controller{c}.ControllerUnpublish(ctx, r)
}

// testRecords adapts the state database for plugintest.
type testRecords struct{ a *agent }

// Scratch returns the scratch volume of a test.
func (r testRecords) Scratch(id string) *volume.Scratch { return r.a.plugins.Scratch(id) }

// SaveScratch stores the scratch volume of a test.
func (r testRecords) SaveScratch(ctx context.Context, id string, s *volume.Scratch) error {
	return r.a.plugins.SaveScratch(ctx, id, s)
}

// Registered returns the id under which a storage volume is registered, or was before a forced
// deregister that left something.
func (r testRecords) Registered(driver, external string) (string, bool) {
	for _, v := range (records.WithLeftovers{Store: r.a.db}).Volumes() {
		if v.Volume.Driver == driver && v.Volume.ExternalID == external {
			return v.Volume.ID, true
		}
	}

	return "", false
}

// InUse returns the volumes that are on this host through a plugin, without the test's own.
func (r testRecords) InUse(id string) []string {
	var ids []string
	for _, v := range r.a.inUse(id) {
		if s := r.Scratch(id); s == nil || v != plugintest.Name(s) {
			ids = append(ids, v)
		}
	}

	return ids
}

// testHost adapts the mount table for plugintest.
type testHost struct {
	*mount.Host
	root string
}

// Count returns the number of mounts at a path.
func (h testHost) Count(path string) (n int, err error) {
	entries, err := h.Under(path)
	for _, e := range entries {
		if e.Path == path {
			n++
		}
	}

	return n, err
}

// Own reports whether a mount shows a directory below the mount root.
func (h testHost) Own(id volume.MountIdentity) (bool, error) { return h.InTree(id, h.root) }

// Unmount uses force if necessary, because no other process needs the mounts of a test.
func (h testHost) Unmount(ctx context.Context, path string) (err error) {
	for _, how := range []mount.How{mount.Plain, mount.Force, mount.Lazy} {
		if err = h.Host.Unmount(ctx, path, how); err == nil {
			return nil
		}
	}

	return err
}

// Remove removes an empty directory, or the leftover of a target.
func (h testHost) Remove(path string) error { return h.RemoveLeftover(path) }

// tested implements the tests for the API.
type tested struct{ *plugintest.Service }

// TestPlugin runs a test.
func (t tested) TestPlugin(ctx context.Context, id string, q api.PluginTest, each func(api.PluginCheck) error) (api.PluginTestSummary, error) {
	ask, err := toAsk(q)
	if err != nil {
		return api.PluginTestSummary{}, err
	}

	sum, err := t.Run(ctx, id, ask, func(r plugintest.Result) error {
		return each(api.PluginCheck{
			Check: r.Check, Result: string(r.Verdict), Said: r.Said, TookMS: float64(r.Took.Microseconds()) / 1000})
	})

	return api.PluginTestSummary{
		Driver: sum.Driver, Version: sum.Version, NodeID: sum.NodeID, Mounts: sum.Mounts, FSType: sum.FSType,
		Attaches: sum.Attaches, Stages: sum.Stages, StageMounts: sum.StageMounts, Creates: sum.Creates,
		OK: sum.OK, WorkAround: sum.WorkAround, Broken: sum.Broken, Skipped: sum.Skip,
	}, err
}

func toAsk(q api.PluginTest) (plugintest.Ask, error) {
	ask := plugintest.Ask{
		ExternalID: q.ExternalID, Context: q.Context, Parameters: q.Parameters, Capacity: q.Capacity,
		Access: call.AccessMode(q.AccessMode), Kill: q.Kill, Forget: q.Forget,
	}
	if q.MountOptions != nil {
		ask.MountOptions = call.MountOptions(*q.MountOptions)
	}
	for name, ref := range q.Secrets {
		if ask.Secrets == nil {
			ask.Secrets = map[string]call.SecretRef{}
		}
		if _, literal := ref.Literal.Reveal(); literal || ref.Sealed {
			return ask, volume.Errorf(volume.ErrInvalid, "secret %q is no reference: a test takes {file: PATH}, {credential: NAME} or {env: NAME}", name)
		}

		ask.Secrets[name] = call.SecretRef{File: ref.File, Credential: ref.Credential, Env: ref.Env}
	}

	if ask.Access != "" {
		if err := volume.CheckCapability(call.Capability{Access: ask.Access, Attachment: call.FileSystem}); err != nil {
			return ask, err
		}
	}

	if len(ask.Context) > 0 && ask.ExternalID == "" {
		return ask, volume.Errorf(volume.ErrInvalid, "a context belongs to a volume that is given by its external id")
	}
	if ask.Capacity < 0 {
		return ask, volume.Errorf(volume.ErrInvalid, "a size cannot be negative")
	}
	if strings.TrimSpace(q.Timeout) == "" {
		return ask, nil
	}

	var err error
	if ask.Timeout, err = time.ParseDuration(q.Timeout); err != nil || ask.Timeout <= 0 {
		return ask, volume.Errorf(volume.ErrInvalid, "timeout %q is no duration such as 5m", q.Timeout)
	}

	return ask, nil
}
