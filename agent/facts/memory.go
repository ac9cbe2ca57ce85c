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

// Systemd reads the settings of systemd units.
type Systemd interface {
	Settings(ctx context.Context, name string) (systemd.Settings, error)
}

// Containers finds containers for which the agent does not know whether they still use a volume.
type Containers interface{ Doubts() []dockervol.Doubt }

// Options contains the sources of the facts.
type Options struct {
	Root         string // the directory that contains all mounts
	StateFile    string
	Halt         string // why the agent does not call plugins; empty in normal operation
	OtherDataDir string // the data dir of another agent that is the reason for Halt
	Serving      bool   // whether the agent serves volumes to docker and podman

	DB         records.Store
	Host       *mount.Host
	Dirs       owndir.Dirs
	Owners     volume.Owners
	Queue      Queue
	Plugins    plugins.Set
	Tests      Tests
	Systemd    Systemd
	Containers Containers
	Cluster    *Cluster // nil without a cluster

	// VolumeFiles, ClassFiles and MetricsAddress return the problems with the volume files, the class
	// files and the metrics address.
	VolumeFiles, ClassFiles, MetricsAddress func() []api.Problem
}

// collector collects the facts that need more than one function call.
type collector struct{ o Options }

// leftovers returns the leftovers of forced deregisters.
func (c *collector) leftovers() (all []doctor.Deregistered) {
	for _, d := range statedb.Leftovers.All(c.o.DB) {
		r := d.Whole()
		all = append(all, doctor.Deregistered{
			Record: r, Since: d.Since, Left: provision.DescribeLeftovers(r), Calls: r.PendingCallState(c.o.Queue.Last(r), c.o.Plugins.View(r.Volume.PluginID)),
		})
	}

	return all
}

// tests returns the running tests of plugins, and the leftovers of interrupted tests.
func (c *collector) tests() (all []doctor.Test) {
	for id, left := range c.o.Plugins.Usage.Scratches() {
		all = append(all, doctor.Test{Plugin: id, Running: c.o.Tests.Testing(id), Name: left.Name(), Begun: left.Begun, Paths: left.Paths(), Dirs: left.Dirs})
	}

	return all
}

// unmet returns the settings that the agent could not apply, with the messages from the status of
// the host.
func (c *collector) unmet() (all []doctor.Unmet) {
	for _, p := range c.o.VolumeFiles() {
		all = append(all, doctor.Unmet{Kind: doctor.VolumeFile, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}
	for _, p := range c.o.ClassFiles() {
		all = append(all, doctor.Unmet{Kind: doctor.ClassFile, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}
	for _, p := range c.o.MetricsAddress() {
		all = append(all, doctor.Unmet{Kind: doctor.MetricsAddress, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}

	return all
}

// plugins returns all plugins. For plugins that run as systemd units, it adds systemd's
// information.
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
