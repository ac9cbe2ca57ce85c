// Package node contains the commands of volctl for the whole host: its status, its drain, its
// events, and the doctor, which also works without the agent.
package node

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// New returns the group volctl node.
func New(a *command.App) *cobra.Command {
	return command.Group("node", "Show and drain this host", "", NewStatus(a), newDrain(a), newUndrain(a))
}

// NewStatus returns the command volctl node status.
func NewStatus(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show a summary of this host, problems first", Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Read(cmd, runStatus) },
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
	line := fmt.Sprintf("%s %s  %s   agent %s up %s", out.Mark(is), output.OneLine(n.ID), state, output.OneLine(n.Version), output.Since(out.Now(), n.StartedAt))

	if n.DB != "" {
		line += "   DB " + output.OneLine(n.DB)
	}

	switch {
	case n.Draining:
		line += "   draining"
	case is != output.Bad:
		line += "   not draining"
	}

	w.WriteString(line + "\n")
	drainLine(w, n)

	if !well(n) {
		w.WriteString("  Agent    " + output.OneLine(n.State) + "\n")
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

	w.WriteString("  " + counts(n) + "\n")
	if len(n.Plugins) == 0 {
		return nil
	}

	rows := make([][]string, len(n.Plugins))
	for i, p := range n.Plugins {
		rows[i] = []string{p.ID, output.PluginState(&p), strconv.Itoa(p.Restarts), output.Staged(&p)}
	}

	return output.Table(w, "  ", []string{"PLUGIN", "STATE", "RESTARTS", "VOLUMES/MAX"}, rows)
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

// condition returns good, and "healthy", only if all plugins are ready.
func condition(n *api.Node) (output.Condition, string) {
	down := len(n.Plugins) - readyPlugins(n)
	switch {
	case len(n.Problems) > 0:
		return output.Bad, output.Count(len(n.Problems), "problem")
	case !well(n):
		return output.Bad, "not working"
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

func well(n *api.Node) bool { return n.State == "" || n.State == "ok" }

func problemTable(w *bytes.Buffer, out *output.Printer, n *api.Node) error {
	rows := make([][]string, len(n.Problems))
	for i, p := range n.Problems {
		state := p.State
		if !p.Since.IsZero() {
			state += " " + output.Since(out.Now(), p.Since)
		}
		rows[i] = []string{p.Subject, output.Joined("  ", state, p.Message), ""}
		if p.Command != "" {
			rows[i][2] = "→ " + p.Command
		}
	}

	if err := output.Table(w, "  ", nil, rows); err != nil {
		return err
	}

	fmt.Fprintf(w, "  Unaffected: %s\n", output.Count(n.Unaffected, "volume"))
	return nil
}

// pendingTable shows expansions, modifications and snapshots that may not have ended yet.
func pendingTable(w *bytes.Buffer, out *output.Printer, n *api.Node) error {
	if len(n.Pending) == 0 {
		return nil
	}

	rows := make([][]string, len(n.Pending))
	for i, p := range n.Pending {
		state := "pending"
		if !p.Since.IsZero() {
			state += " " + output.Since(out.Now(), p.Since)
		}
		rows[i] = []string{p.Subject, output.Joined("  ", state, p.Message), "→ " + p.Command}
	}

	return output.Table(w, "  ", nil, rows)
}

func counts(n *api.Node) string {
	volumes := fmt.Sprintf("Volumes %d", n.Volumes)
	if n.Volumes > 0 {
		volumes += fmt.Sprintf(": %d mounted, %d free", n.Mounted, n.Free)
	}
	if others := n.Volumes - n.Mounted - n.Free; others > 0 {
		volumes += fmt.Sprintf(", %d between", others)
	}
	return fmt.Sprintf("Plugins  %d/%d ready     %s     Claims %d", readyPlugins(n), len(n.Plugins), volumes, n.Claims)
}
