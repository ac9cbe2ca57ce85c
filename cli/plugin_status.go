package cli

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type pluginStatusOptions struct{ id string }

func newPluginStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status [ID]", Short: "Show a plugin, and why it is not ready",
		Long: `Show a plugin: its state, its process, its volumes, what it can do, and if it is not ready
the last it wrote. The beginning of an id is enough. Without an id, list all.`,
		Args: between(0, "ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.read(cmd, runPluginList)
			}
			o := pluginStatusOptions{id: args[0]}
			return a.read(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginStatus(ctx, o, client, out)
			})
		},
	}
}

func runPluginStatus(ctx context.Context, o pluginStatusOptions, client *apiclient.Client, out *output) error {
	p, err := findPlugin(ctx, client, o.id)
	if err != nil {
		return failed(err, "show plugin %q", o.id)
	}
	return out.print(p, []string{p.ID}, func(w *bytes.Buffer) error {
		pluginScreen(w, out, p)
		return nil
	})
}

func pluginScreen(w *bytes.Buffer, out *output, p *api.Plugin) {
	now, ready := out.now(), p.State == api.PluginReady
	head := out.mark(ready) + " " + oneLine(p.ID) + "  " + oneLine(joined(": ", p.State, p.Reason)) + ", " + since(now, p.Since)
	lines := []pair{{head, fmt.Sprintf("restarts %d", p.Restarts)}}
	if !p.Next.IsZero() {
		lines = append(lines, field("Next", "started again "+in(now, p.Next), ""))
	}
	if p.LastExit != "" {
		lines = append(lines, field("Exit", p.LastExit, ""))
	}
	if p.Pending != "" {
		lines = append(lines, field("Pending", p.Pending, ""))
	}
	process := p.Runner
	if p.PID != 0 {
		process += ", pid " + pid(p)
	}
	lines = append(lines, field("Driver", joined(" ", dash(p.Provider), p.Version), joined(", ", p.Type, process)))
	volumes := fmt.Sprintf("%d, %d staged here", len(p.Volumes), p.Staged)
	if p.MaxVolumes > 0 {
		volumes += fmt.Sprintf(" of at most %d", p.MaxVolumes)
	}
	lines = append(lines, field("Volumes", volumes, ""))
	if p.NodeID != "" {
		lines = append(lines, field("Node", p.NodeID, topology(p.Topology)))
	}
	optional := []struct{ name, value string }{
		{"Socket", p.Socket},
		{"Log", p.LogFile},
		{"Can", strings.Join(capabilities(p), " ")},
	}
	for _, o := range optional {
		if o.value != "" {
			lines = append(lines, field(o.name, o.value, ""))
		}
	}
	pairs(w, lines)
	if ready || len(p.LastLog) == 0 {
		return
	}
	w.WriteString("  Last lines of its log:\n")
	for _, line := range p.LastLog {
		w.WriteString("    " + printable(line) + "\n")
	}
}

// capabilities are the controller's and the node's. Some are of both.
func capabilities(p *api.Plugin) []string {
	can := slices.Clone(p.ControllerCapabilities)
	for _, c := range p.NodeCapabilities {
		if !slices.Contains(can, c) {
			can = append(can, c)
		}
	}
	return can
}

func topology(segments map[string]string) string {
	parts := make([]string, 0, len(segments))
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		parts = append(parts, k+"="+segments[k])
	}
	return strings.Join(parts, " ")
}
