package plugins

import (
	"context"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Tested gives the package plugintest access to the plugins.
type Tested struct{ Set }

// Tested returns a plugin if it is ready.
func (p Tested) Tested(id string) (plugintest.Plugin, error) {
	c, err := p.Client(id)
	if err != nil {
		return nil, err
	}
	return testedPlugin{c, &router{plugins: p.Set, id: id}}, nil
}

// Await waits until all services of a plugin are ready, or returns the plugin's state as an error.
func (p Tested) Await(ctx context.Context, id string) error {
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

// testedPlugin sends the calls of the node service to the node client, and all other calls to a
// controller.
type testedPlugin struct {
	*csiclient.Client
	controllers call.Caller
}

// Call implements call.Caller.
func (p testedPlugin) Call(ctx context.Context, m call.Method, request any) (any, error) {
	if m.Service() == call.Node {
		return p.Client.Call(ctx, m, request)
	}
	return p.controllers.Call(ctx, m, request)
}

// TestRecords gives the package plugintest access to the state database.
type TestRecords struct {
	*supervisor.Supervisor // stores the scratch volume of a test

	Usage Usage
}

// Registered returns the id under which a storage volume is registered. It also finds a volume that
// has a leftover record after a forced deregister.
func (r TestRecords) Registered(driver, external string) (string, bool) {
	for _, v := range (records.WithLeftovers{Store: r.Usage.Records}).Volumes() {
		if v.Volume.Driver == driver && v.Volume.ExternalID == external {
			return v.Volume.ID, true
		}
	}

	return "", false
}

// InUse returns the volumes that are on this host through a plugin, except the plugin's own scratch
// volume of a test.
func (r TestRecords) InUse(id string) []string {
	s := r.Scratch(id)
	return slices.DeleteFunc(r.Usage.InUse(id), func(v string) bool { return s != nil && v == s.Name() })
}

// TestHost gives the package plugintest access to the mount table.
type TestHost struct {
	*mount.Host

	Root string // the directory below which the agent makes all its mounts
}

// Count returns the number of mounts at a path.
func (h TestHost) Count(path string) (n int, err error) {
	entries, err := h.Under(path)
	for _, e := range entries {
		if e.Path == path {
			n++
		}
	}

	return n, err
}

// Own reports whether the directory that a mount shows lies below Root.
func (h TestHost) Own(id volume.MountIdentity) (bool, error) { return h.InTree(id, h.Root) }

// Unmount uses force if necessary, because no other process needs the mounts of a test.
func (h TestHost) Unmount(ctx context.Context, path string) (err error) {
	for _, how := range []mount.How{mount.Plain, mount.Force, mount.Lazy} {
		if err = h.Host.Unmount(ctx, path, how); err == nil {
			return nil
		}
	}

	return err
}

// Remove removes an empty directory, or the file or directory that remains of a target.
func (h TestHost) Remove(path string) error { return h.RemoveLeftover(path) }

// RecoverTests cleans up after tests that an earlier agent process did not finish.
func RecoverTests(ctx context.Context, u Usage, tests *plugintest.Service, log hclog.Logger) {
	var wg sync.WaitGroup
	for id := range u.Scratches() {
		wg.Go(func() {
			if err := tests.Recover(ctx, id); err != nil && ctx.Err() == nil {
				log.Warn("a test of a plugin has leftovers", "plugin", id, "error", err)
			}
		})
	}

	wg.Wait()
}
