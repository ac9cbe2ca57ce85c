package cli

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

func newNode(a *app) *cobra.Command {
	return group("node", "Show and drain this host", "", newNodeStatus(a), newNodeDrain(a), newNodeUndrain(a))
}

func newNodeStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show a summary of this host, problems first", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.read(cmd, runNodeStatus) },
	}
}

func runNodeStatus(ctx context.Context, client *apiclient.Client, out *output) error {
	n, err := client.Node(ctx)
	if err != nil {
		return failed(err, "show the node")
	}
	return out.print(n, []string{n.ID}, func(w *bytes.Buffer) error { return nodeScreen(w, out, n) })
}

func nodeScreen(w *bytes.Buffer, out *output, n *api.Node) error {
	is, state := nodeCondition(n)
	line := fmt.Sprintf("%s %s  %s   agent %s up %s", out.mark(is), oneLine(n.ID), state, oneLine(n.Version), since(out.now(), n.StartedAt))

	if n.DB != "" {
		line += "   DB " + oneLine(n.DB)
	}

	switch {
	case n.Draining:
		line += "   draining"
	case is != bad:
		line += "   not draining"
	}

	w.WriteString(line + "\n")
	drainLine(w, n)

	if !nodeWell(n) {
		w.WriteString("  Agent    " + oneLine(n.State) + "\n")
	}

	if len(n.Problems) > 0 {
		if err := problemTable(w, out, n); err != nil {
			return err
		}
	}

	if err := pendingTable(w, out, n); err != nil {
		return err
	}
	if len(n.Problems) > 0 && !out.wide() {
		return nil
	}

	w.WriteString("  " + nodeCounts(n) + "\n")
	if len(n.Plugins) == 0 {
		return nil
	}

	rows := make([][]string, len(n.Plugins))
	for i, p := range n.Plugins {
		rows[i] = []string{p.ID, pluginState(&p), strconv.Itoa(p.Restarts), staged(&p)}
	}

	return table(w, "  ", []string{"PLUGIN", "STATE", "RESTARTS", "VOLUMES/MAX"}, rows)
}

// drainLine shows the progress of a drain.
func drainLine(w *bytes.Buffer, n *api.Node) {
	switch {
	case n.Drain == nil:
	case n.Drain.Safe:
		w.WriteString("  Drain    safe to power off   → volctl node undrain\n")
	default:
		w.WriteString("  Drain    " + inTheWay(n.Drain) + "   → volctl node drain\n")
	}
}

// nodeCondition returns good, and "healthy", only if all plugins are ready.
func nodeCondition(n *api.Node) (condition, string) {
	down := len(n.Plugins) - readyPlugins(n)
	switch {
	case len(n.Problems) > 0:
		return bad, count(len(n.Problems), "problem")
	case !nodeWell(n):
		return bad, "not working"
	case down > 0:
		return changing, count(down, "plugin") + " not ready"
	default:
		return good, "healthy"
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

func nodeWell(n *api.Node) bool { return n.State == "" || n.State == "ok" }

func problemTable(w *bytes.Buffer, out *output, n *api.Node) error {
	rows := make([][]string, len(n.Problems))
	for i, p := range n.Problems {
		state := p.State
		if !p.Since.IsZero() {
			state += " " + since(out.now(), p.Since)
		}
		rows[i] = []string{p.Subject, joined("  ", state, p.Message), ""}
		if p.Command != "" {
			rows[i][2] = "→ " + p.Command
		}
	}

	if err := table(w, "  ", nil, rows); err != nil {
		return err
	}

	fmt.Fprintf(w, "  Unaffected: %s\n", count(n.Unaffected, "volume"))
	return nil
}

// pendingTable shows expansions, modifications and snapshots that may not have ended yet.
func pendingTable(w *bytes.Buffer, out *output, n *api.Node) error {
	if len(n.Pending) == 0 {
		return nil
	}

	rows := make([][]string, len(n.Pending))
	for i, p := range n.Pending {
		state := "pending"
		if !p.Since.IsZero() {
			state += " " + since(out.now(), p.Since)
		}
		rows[i] = []string{p.Subject, joined("  ", state, p.Message), "→ " + p.Command}
	}

	return table(w, "  ", nil, rows)
}

func nodeCounts(n *api.Node) string {
	volumes := fmt.Sprintf("Volumes %d", n.Volumes)
	if n.Volumes > 0 {
		volumes += fmt.Sprintf(": %d mounted, %d free", n.Mounted, n.Free)
	}
	if others := n.Volumes - n.Mounted - n.Free; others > 0 {
		volumes += fmt.Sprintf(", %d between", others)
	}
	return fmt.Sprintf("Plugins  %d/%d ready     %s     Claims %d", readyPlugins(n), len(n.Plugins), volumes, n.Claims)
}
