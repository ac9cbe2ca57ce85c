package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/volume"
)

// status is one line for systemctl status.
func (a *agent) status() string {
	if a.halt != "" {
		return "halted: " + a.halt
	}
	return fmt.Sprintf("%d volumes", len(a.db.Volumes()))
}

// describe is the node as the API shows it, less what it can count itself.
func (a *agent) describe() api.Node {
	n := api.Node{ID: a.node.ID, Version: api.Version, StartedAt: a.started, DataDir: a.c.DataDir, State: "ok", DB: "ok", Draining: a.db.Draining()}
	if a.halt != "" {
		n.State = a.halt
	}
	if err := a.db.Fault(); err != nil {
		n.DB = err.Error()
		n.Problems = append(n.Problems, api.Problem{
			Subject: "agent", Message: "cannot write the state database: " + n.DB, Command: "df " + a.c.DataDir,
		})
	}
	if p, ok := a.lost(); ok {
		if n.DB == "ok" {
			n.DB = "made anew"
		}
		n.Problems = append(n.Problems, p)
	}
	n.Problems = append(n.Problems, a.unscraped()...)
	n.Problems = append(n.Problems, a.files.problems()...)
	n.Problems = append(n.Problems, a.debts()...)
	n.Problems = append(n.Problems, a.cutTests()...)
	n.Problems = append(n.Problems, a.deadlocks()...)
	n.Pending = pending(a.db.Volumes(), a.db.Snapshots())
	return n
}

// pending are the changes that have not been seen to end.
func pending(volumes []volume.Record, snapshots []volume.SnapshotIntent) []api.PendingChange {
	all := []api.PendingChange{}
	for _, p := range volume.PendingChanges(volumes, snapshots) {
		all = append(all, api.PendingChange(p))
	}
	return all
}

// debts are what forced deregisters left on this host or at the plugin. What may
// only come late is no problem of anybody's.
func (a *agent) debts() []api.Problem {
	var out []api.Problem
	for _, d := range a.db.Debts() {
		left := provision.Behind(d.Whole())
		if len(left) == 0 {
			continue
		}
		v := d.Record.Volume
		how := "it is undone now"
		if p := a.plugins.View(v.PluginID); !p.Ready {
			how = fmt.Sprintf("it is undone when plugin %q is ready; to give it up for good: ", v.PluginID) +
				volume.Command("volctl volume deregister %s -force --forget", v.ID)
		}
		out = append(out, api.Problem{
			Subject: v.ID,
			Message: fmt.Sprintf("was deregistered by force %s ago: %s; %s", time.Since(d.Since).Round(time.Second), strings.Join(left, "; "), how),
			Command: volume.Command("volctl plugin status %s", v.PluginID),
		})
	}
	return out
}
