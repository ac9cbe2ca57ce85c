package agent

import (
	"fmt"
	"os"

	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr"
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
		Store: records.Plugins{Store: a.db}, Registry: records.Plugins{Store: a.db}, Secrets: plugins.FileSecrets{}, Logger: a.log, Client: client,
		InUse: a.usage.InUse, HasVolumes: a.usage.HasVolumes, FUSE: a.usage.FUSEClaims, Known: a.usage.KnownSecrets,
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

// newTests connects the tests of plugins with this host.
func (a *agent) newTests(host *mount.Host, paths *volmgr.Manager) *plugintest.Service {
	return &plugintest.Service{
		Plugins: plugins.Tested{Set: a.plugins}, Records: plugins.TestRecords{Supervisor: a.plugins.Supervisor, Usage: a.usage}, Host: plugins.TestHost{Host: host, Root: a.c.mountRoot()}, Paths: paths,
		Secrets: a.secrets.Of, Events: a.events.Add, Ended: a.plugins.Released, Halt: a.halt,
	}
}

// begun returns the volumes of unfinished snapshots.
func begun(all []volume.SnapshotIntent) (ids []string) {
	for _, s := range all {
		ids = append(ids, s.Volumes...)
	}
	return ids
}
