// Package node contains the commands of volctl for the host as a whole: status, drain, events and
// doctor. The command doctor also works without an agent.
package node

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// New returns the command group "volctl node".
func New(a *command.App) *cobra.Command {
	return command.Group("node", "Show and drain this host, and show the hosts of its cluster", "", NewStatus(a), newList(a), newDrain(a), newUndrain(a), newReplace(a), newFence(a), newUnfence(a), newFenceTest(a))
}

// NewStatus returns the command "volctl node status".
func NewStatus(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "status [HOST]", Short: "Show a summary of this host, problems first",
		Long: `Show a summary of this host, problems first. With the name of another host of the cluster, show its
state, its plugins, and the shared volumes that it holds.`,
		Args: command.Between(0, "HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.Read(cmd, runStatus)
			}
			o := statusOptions{host: args[0]}
			return a.Read(cmd, o.run)
		},
	}
}

func runStatus(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	n, err := client.Node(ctx)
	if err != nil {
		return command.Failed(err, "show the node")
	}
	return out.Print(n, []string{n.ID}, func(w *bytes.Buffer) error { return statusScreen(w, out, n) })
}

func statusScreen(w *bytes.Buffer, out *output.Printer, n *api.Node) error {
	is, state := condition(n)
	facts := []string{n.ID + "  " + state, "agent " + n.Version + " up " + output.Since(out.Now(), n.StartedAt)}

	if n.DB != "" {
		facts = append(facts, "DB "+n.DB)
	}

	switch {
	case n.Draining:
		facts = append(facts, "draining")
	case is != output.Bad:
		facts = append(facts, "not draining")
	}

	out.Headline(w, "", out.Mark(is), facts...)
	if err := out.Fields(w, "  ", append(unusual(n), clusterLines(n.Cluster, out.Now())...)); err != nil {
		return err
	}

	if len(n.Problems) > 0 {
		if err := problemTable(w, out, n); err != nil {
			return err
		}
	}

	if err := pendingTable(w, out, n); err != nil {
		return err
	}
	if len(n.Problems) > 0 && !out.Wide() {
		return nil
	}

	if err := out.Fields(w, "  ", counts(n)); err != nil || len(n.Plugins) == 0 {
		return err
	}

	rows := make([][]string, len(n.Plugins))
	for i, p := range n.Plugins {
		rows[i] = []string{p.ID, output.PluginState(&p), strconv.Itoa(p.Restarts), output.Staged(&p)}
	}

	return out.Table(w, "  ", []string{"Plugin", "State", "Restarts", "Volumes/Max"}, rows)
}

// unusual returns lines that appear only if something is unusual: the progress of a drain, and
// problems of the agent itself.
func unusual(n *api.Node) []output.Field {
	var lines []output.Field
	switch {
	case n.Drain == nil:
	case n.Drain.Safe:
		lines = append(lines, output.Named("Drain", "safe to power off", "→ volctl node undrain"))
	default:
		lines = append(lines, output.Named("Drain", inTheWay(n.Drain), "→ volctl node drain"))
	}

	if !well(n) {
		lines = append(lines, output.Named("Agent", n.State))
	}

	return lines
}

// condition returns the condition of the node, and a text that describes it. The node is healthy
// only if all plugins are ready, and the host can use its cluster.
func condition(n *api.Node) (output.Condition, string) {
	down := len(n.Plugins) - readyPlugins(n)
	switch {
	case len(n.Problems) > 0:
		return output.Bad, output.Count(len(n.Problems), "problem")
	case !well(n):
		return output.Bad, "not working"
	case n.Cluster != nil && !n.Cluster.Reachable:
		return output.Bad, "cluster not usable"
	case down > 0:
		return output.Changing, output.Count(down, "plugin") + " not ready"
	default:
		return output.Good, "healthy"
	}
}

func readyPlugins(n *api.Node) int {
	ready := 0
	for _, p := range n.Plugins {
		if p.State == api.PluginReady {
			ready++
		}
	}
	return ready
}

func well(n *api.Node) bool { return n.State == "" || n.State == api.OK }

func problemTable(w *bytes.Buffer, out *output.Printer, n *api.Node) error {
	rows := make([][]string, len(n.Problems))
	for i, p := range n.Problems {
		rows[i] = []string{p.Subject, lasting(p.State, p.Since, out.Now()), p.Message, output.Arrow(p.Command)}
	}

	if err := out.Table(w, "  ", nil, rows); err != nil {
		return err
	}

	out.Line(w, "  ", "Unaffected: "+output.Count(n.Unaffected, "volume"))
	return nil
}

// pendingTable writes a table of the expansions, modifications and snapshots that may still be
// running.
func pendingTable(w *bytes.Buffer, out *output.Printer, n *api.Node) error {
	if len(n.Pending) == 0 {
		return nil
	}

	rows := make([][]string, len(n.Pending))
	for i, p := range n.Pending {
		rows[i] = []string{p.Subject, lasting("pending", p.Since, out.Now()), p.Message, output.Arrow(p.Command)}
	}

	return out.Table(w, "  ", nil, rows)
}

// lasting returns a state together with its duration. If since is zero, it returns only the state.
func lasting(state string, since, now time.Time) string {
	if since.IsZero() {
		return state
	}
	return state + " " + output.Since(now, since)
}

// counts returns lines with the numbers of plugins, volumes and claims.
func counts(n *api.Node) []output.Field {
	volumes := strconv.Itoa(n.Volumes)
	if n.Volumes > 0 {
		volumes += fmt.Sprintf(": %d mounted, %d free", n.Mounted, n.Free)
	}
	if others := n.Volumes - n.Mounted - n.Free; others > 0 {
		volumes += fmt.Sprintf(", %d between", others)
	}

	return []output.Field{
		output.Named("Plugins", fmt.Sprintf("%d/%d ready", readyPlugins(n), len(n.Plugins))),
		output.Named("Volumes", volumes),
		output.Named("Claims", strconv.Itoa(n.Claims)),
	}
}
