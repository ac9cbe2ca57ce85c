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
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// newTests gives the tests of plugins what they declare to need.
func (a *agent) newTests(plugins pluginSet, host *mount.Host, paths *volmgr.Manager) *plugintest.Service {
	return &plugintest.Service{
		Plugins: testedPlugins{plugins}, Records: testRecords{a}, Host: testHost{host, a.c.mountRoot()}, Paths: paths,
		Secrets: a.secrets.Of, Events: a.events.Add, Ended: a.plugins.Released, Halt: a.halt,
	}
}

// scratches are what tests left, by plugin.
func (a *agent) scratches() map[string]*volume.Scratch {
	all := map[string]*volume.Scratch{}
	for _, p := range a.db.Plugins() {
		if p.Scratch != nil {
			all[cmp.Or(p.Plugin, p.ID)] = p.Scratch
		}
	}
	return all
}

// recoverTests undoes what tests left that an earlier agent did not see the end of.
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

// cutTests are the tests that left something which is not undone.
func (a *agent) cutTests() (all []api.Problem) {
	for id, left := range a.scratches() {
		if a.tests.Testing(id) {
			continue
		}
		all = append(all, api.Problem{
			Subject: id, Since: left.Begun, Message: fmt.Sprintf("a test of the plugin left volume %q, which is not undone", plugintest.Name(left)),
			Command: volume.Command("volctl plugin test %s", id),
		})
	}
	return all
}

// testedPlugins is plugintest's view of the plugins.
type testedPlugins struct{ pluginSet }

// Tested is a plugin that is ready.
func (p testedPlugins) Tested(id string) (plugintest.Plugin, error) {
	c, err := p.Client(id)
	if err != nil {
		return nil, err
	}
	return testedPlugin{c, provisioner{p.pluginSet, id}}, nil
}

// Await waits until all services of a plugin are ready, or says how it is instead.
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
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q is %s: %s", id, v.State, v.Reason).WithHint("volctl plugin status %s", id)
	}
}

// testedPlugin sends each call to the part of the plugin that it is for.
type testedPlugin struct {
	*csiclient.Client
	provisioner
}

// CreateVolume asks a controller.
func (p testedPlugin) CreateVolume(ctx context.Context, r volume.CreateVolumeRequest) (volume.CreateVolumeResult, error) {
	return p.provisioner.CreateVolume(ctx, r)
}

// DeleteVolume asks a controller.
func (p testedPlugin) DeleteVolume(ctx context.Context, r volume.DeleteVolumeRequest) error {
	return p.provisioner.DeleteVolume(ctx, r)
}

// NodeStats asks the node part.
func (p testedPlugin) NodeStats(ctx context.Context, r volume.StatsRequest) (volume.Stats, error) {
	return p.Client.NodeStats(ctx, r)
}

// ControllerPublish asks a controller.
func (p testedPlugin) ControllerPublish(ctx context.Context, r volume.ControllerPublishRequest) (map[string]string, error) {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return nil, err
	}
	return controller{c}.ControllerPublish(ctx, r)
}

// ControllerUnpublish asks a controller.
func (p testedPlugin) ControllerUnpublish(ctx context.Context, r volume.ControllerUnpublishRequest) error {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return err
	}
	return controller{c}.ControllerUnpublish(ctx, r)
}

// testRecords is plugintest's view of the state database.
type testRecords struct{ a *agent }

// Scratch is what a test may have left.
func (r testRecords) Scratch(id string) *volume.Scratch { return r.a.plugins.Scratch(id) }

// SaveScratch stores that.
func (r testRecords) SaveScratch(ctx context.Context, id string, s *volume.Scratch) error {
	return r.a.plugins.SaveScratch(ctx, id, s)
}

// Registered is the volume, or what a forced deregister left of one, that a
// storage volume is.
func (r testRecords) Registered(driver, external string) (string, bool) {
	for _, v := range (queueStore{r.a.db}).Volumes() {
		if v.Volume.Driver == driver && v.Volume.ExternalID == external {
			return v.Volume.ID, true
		}
	}
	return "", false
}

// InUse names the volumes that are on this host through a plugin.
func (r testRecords) InUse(id string) []string {
	var ids []string
	for _, v := range r.a.inUse(id) {
		if s := r.Scratch(id); s == nil || v != plugintest.Name(s) {
			ids = append(ids, v)
		}
	}
	return ids
}

// testHost is plugintest's view of the mount table.
type testHost struct {
	*mount.Host
	root string
}

// Count is how many mounts lie on a path.
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

// Unmount goes as far as it has to: what a test mounted is of use to nobody.
func (h testHost) Unmount(ctx context.Context, path string) (err error) {
	for _, how := range []mount.How{mount.Plain, mount.Force, mount.Lazy} {
		if err = h.Host.Unmount(ctx, path, how); err == nil {
			return nil
		}
	}
	return err
}

// Remove removes an empty directory, or what a target left.
func (h testHost) Remove(path string) error { return h.RemoveLeftover(path) }

// tested is the API's view of the tests.
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
		Access: volume.AccessMode(q.AccessMode), Kill: q.Kill, Forget: q.Forget,
	}
	if q.MountOptions != nil {
		ask.MountOptions = volume.MountOptions(*q.MountOptions)
	}
	for name, ref := range q.Secrets {
		if ask.Secrets == nil {
			ask.Secrets = map[string]volume.SecretRef{}
		}
		if _, literal := ref.Literal.Reveal(); literal || ref.Sealed {
			return ask, volume.Errorf(volume.ErrInvalid, "secret %q is no reference: a test takes {file: PATH}, {credential: NAME} or {env: NAME}", name)
		}
		ask.Secrets[name] = volume.SecretRef{File: ref.File, Credential: ref.Credential, Env: ref.Env}
	}
	if ask.Access != "" {
		if err := (volume.Capability{Access: ask.Access, Attachment: volume.FileSystem}).Check(); err != nil {
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
