package facts

import (
	"context"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/owndir"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Queue observes volumes and makes the agent retry their steps.
type Queue interface {
	doctor.Queue
	Last(r volume.Record) *volume.Attempt
}

// Tests reports whether a test of a plugin is running.
type Tests interface{ Testing(pluginID string) bool }

// Systemd reads the settings of units.
type Systemd interface {
	Settings(ctx context.Context, name string) (systemd.Settings, error)
}

// Containers finds the containers whose use of a volume is in doubt.
type Containers interface{ Doubts() []dockervol.Doubt }

// Options are the sources of the facts.
type Options struct {
	Root         string // the directory of all mounts
	StateFile    string
	Halt         string // why the agent sends no calls to plugins; empty in normal operation
	OtherDataDir string // the data dir of another agent, if that agent is the reason for Halt
	Serving      bool   // set if the agent serves docker and podman

	DB         records.Store
	Host       *mount.Host
	Dirs       owndir.Dirs
	Owners     volume.Owners
	Queue      Queue
	Plugins    plugins.Set
	Tests      Tests
	Systemd    Systemd
	Containers Containers

	// VolumeFiles and MetricsAddress return the problems with these settings.
	VolumeFiles, MetricsAddress func() []api.Problem
}

// collector collects those facts that need more than a call of one function.
type collector struct{ o Options }

// leftovers returns the leftovers of forced deregisters.
func (c *collector) leftovers() (all []doctor.Deregistered) {
	for _, d := range statedb.Leftovers.All(c.o.DB) {
		r := d.Whole()
		all = append(all, doctor.Deregistered{
			Record: r, Since: d.Since, Left: provision.Behind(r), Calls: r.PendingCallState(c.o.Queue.Last(r), c.o.Plugins.View(r.Volume.PluginID)),
		})
	}

	return all
}

// tests returns the running tests of plugins, and the leftovers of earlier tests.
func (c *collector) tests() (all []doctor.Test) {
	for id, left := range c.o.Plugins.Usage.Scratches() {
		all = append(all, doctor.Test{Plugin: id, Running: c.o.Tests.Testing(id), Name: left.Name(), Begun: left.Begun, Paths: left.Paths(), Dirs: left.Dirs})
	}

	return all
}

// unmet returns the settings that the agent could not apply. It uses the words of the host's
// status.
func (c *collector) unmet() (all []doctor.Unmet) {
	for _, p := range c.o.VolumeFiles() {
		all = append(all, doctor.Unmet{Kind: doctor.VolumeFile, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}
	for _, p := range c.o.MetricsAddress() {
		all = append(all, doctor.Unmet{Kind: doctor.MetricsAddress, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}

	return all
}

// plugins returns all plugins, with systemd's information about those that are units.
func (c *collector) plugins(ctx context.Context) (all []doctor.Plugin) {
	for _, st := range c.o.Plugins.Statuses() {
		p := doctor.Plugin{ID: st.ID, View: c.o.Plugins.View(st.ID), Since: st.Since, Pending: st.Pending, Warnings: st.Warnings}
		for _, part := range st.Parts {
			if r := part.Running["container.runtime"]; r != "" {
				p.Runtime = r
			}
			if name := part.Running["unit"]; name != "" {
				p.Units = append(p.Units, c.unit(ctx, name))
			}
		}

		p.View.Restarts, p.View.State, p.View.Reason = st.Restarts, string(st.State), st.Reason
		p.View.Ready = st.State == supervisor.Ready
		all = append(all, p)
	}

	return all
}

func (c *collector) unit(ctx context.Context, name string) doctor.Unit {
	u := doctor.Unit{Name: name}
	if s, err := c.o.Systemd.Settings(ctx, name); err == nil && s.Load == "loaded" {
		u.Before, u.Asked = s.Before, true
	}
	return u
}
