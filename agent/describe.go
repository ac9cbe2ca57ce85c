package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/backup"
	"github.com/volagent/volagent/agent/inspect"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// status returns the status line for systemctl status.
func (a *agent) status() string {
	if a.halt != "" {
		return "halted: " + a.halt
	}
	return fmt.Sprintf("%d volumes", len(a.db.Volumes()))
}

// describe returns the node for the API, without the counts that the API server makes itself.
func (a *agent) describe() api.Node {
	n := api.Node{ID: a.node.ID, Version: api.Version, StartedAt: a.started, DataDir: a.c.DataDir, State: "ok", DB: "ok", Draining: a.db.Draining()}
	if a.halt != "" {
		n.State = a.halt
	}
	if p, ok := a.fault(); ok {
		n.DB = a.db.Fault().Error()
		n.Problems = append(n.Problems, p)
	}

	if p, ok := a.lost(); ok {
		if n.DB == "ok" {
			n.DB = "made anew"
		}
		n.Problems = append(n.Problems, p)
	}

	n.Problems = append(n.Problems, a.full()...)
	n.Problems = append(n.Problems, a.unscraped()...)
	n.Problems = append(n.Problems, a.files.Problems()...)
	n.Problems = append(n.Problems, a.leftovers()...)
	n.Problems = append(n.Problems, a.cutTests()...)
	n.Problems = append(n.Problems, a.plugins.Deadlocks()...)
	n.Pending = inspect.Pending(a.db.Volumes(), a.db.Snapshots())
	return n
}

// fault describes why changes cannot be written.
func (a *agent) fault() (p api.Problem, ok bool) {
	err := a.db.Fault()
	var foreign *statedb.Foreign
	switch {
	case err == nil:
		return p, false
	case errors.As(err, &foreign):
		return api.Problem{Subject: "agent", Message: err.Error(), Command: "systemctl restart volagent"}, true
	}

	return api.Problem{Subject: "agent", Message: "cannot write the state database: " + err.Error(), Command: volume.Command("df %s", a.c.DataDir)}, true
}

// Each forced deregister with leftovers is a problem. A possible late effect of a call is not
// reported as one.
func (a *agent) leftovers() []api.Problem {
	var out []api.Problem
	for _, d := range a.db.Debts() {
		left := provision.Behind(d.Whole())
		if len(left) == 0 {
			continue
		}

		v := d.Record.Volume
		calls, command := d.Whole().PendingCallState(a.queue.Last(d.Whole()), a.plugins.View(v.PluginID)), volume.Command("volctl plugin status %s", v.PluginID)
		if calls.Failed {
			command = calls.GiveUp
		}
		out = append(out, api.Problem{
			Subject: v.ID,
			Message: fmt.Sprintf("was deregistered by force %s ago: %s; %s", time.Since(d.Since).Round(time.Second), strings.Join(left, "; "), calls.How),
			Command: command,
		})
	}

	return out
}

// cutTests returns a problem for each interrupted test that is not undone.
func (a *agent) cutTests() (all []api.Problem) {
	for id, left := range a.usage.Scratches() {
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

// lost describes the loss of the state database, as long as an adopted claim or the damaged file
// still exists.
func (a *agent) lost() (p api.Problem, ok bool) {
	loss := a.db.Node().Loss
	if loss.At.IsZero() {
		return p, false
	}

	held := 0
	for _, r := range a.db.Volumes() {
		held += backup.Adopted(r)
	}
	p = api.Problem{Subject: "agent", Message: "the state database was lost and made anew " + loss.At.Format(time.RFC3339)}
	if loss.Why != "" {
		p.Message += ": " + loss.Why
	}
	if loss.Kept != "" {
		if _, err := os.Lstat(loss.Kept); err == nil {
			p.Message += "; the damaged file is kept as " + loss.Kept
			p.Command, ok = volume.Command("rm %s", loss.Kept), true
		}
	}

	if !loss.Copy.IsZero() {
		p.Message += "; volumes, plugins and pending calls are those of an automatic copy of " + loss.Copy.Format(time.RFC3339)
	}
	p.Message += fmt.Sprintf("; adopted: %d volumes with %d claims, of which %d are held", loss.Volumes, loss.Claims, held)
	if held > 0 {
		p.Command, ok = "volctl claim list", true
	}

	return p, ok
}
