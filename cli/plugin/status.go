package plugin

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type statusOptions struct{ id string }

func newStatus(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status [ID]", Short: "Show a plugin and the reason if it is not ready",
		Long: `Show a plugin: its state, its capabilities, its volumes, its definition and its parts. If the
wanted definition differs from the running one, the command shows both. If a part is not ready,
the command shows its last log lines. A unique prefix of the id is enough. Without an id, show all
plugins.`,
		Args: command.Between(0, "ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.Read(cmd, runStatuses)
			}
			o := statusOptions{id: args[0]}
			return a.Read(cmd, o.run)
		},
	}
	command.NomadFlags(cmd.Flags(), "verbose", "type")
	return cmd
}

func (o statusOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	p, err := command.FindPlugin(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "show plugin %q", o.id)
	}
	return out.Print(p, []string{p.ID}, func(w *bytes.Buffer) error {
		return statusScreen(w, out, p)
	})
}

func runStatuses(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	plugins, err := sortedPlugins(ctx, client)
	if err != nil {
		return command.Failed(err, "show plugins")
	}

	ids := make([]string, len(plugins))
	for i, p := range plugins {
		ids[i] = p.ID
	}

	return out.Print(plugins, ids, func(w *bytes.Buffer) error {
		for i := range plugins {
			if i > 0 {
				w.WriteByte('\n')
			}
			if err := statusScreen(w, out, &plugins[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func statusScreen(w *bytes.Buffer, out *output.Printer, p *api.Plugin) error {
	state := output.Joined(": ", p.State, p.Reason) + ", " + output.Since(out.Now(), p.Since)
	out.Headline(w, "", out.Mark(output.GoodOr(p.State == api.PluginReady)), p.ID+"  "+state, fmt.Sprintf("restarts %d", p.Restarts))

	lines := append(nextStart(p.Next, out.Now()),
		output.Named("Driver", output.Joined(" ", output.Dash(p.Provider), p.Version), p.Type),
		output.Named("Healthy", fmt.Sprintf("controllers %s, nodes %s", outOf(p.ControllersHealthy, p.ControllersExpected), outOf(p.NodesHealthy, p.NodesExpected))),
		output.Named("Volumes", volumesHere(p), strings.Join(p.Volumes[:min(len(p.Volumes), shownVolumes)], " ")))

	if p.NodeID != "" {
		lines = append(lines, output.Named("Node", p.NodeID, output.Topology(p.Topology)))
	}

	if can := capabilities(p); len(can) > 0 {
		lines = append(lines, output.Named("Can", strings.Join(can, " ")))
	}

	if p.Fence != "" {
		lines = append(lines, output.Named("Fence", p.Fence, fenceMeaning(p.Fence)))
	}

	parts := p.Parts
	if len(parts) == 1 {
		lines = append(lines, partFields(&parts[0])...)
	}

	if err := out.Fields(w, "  ", lines); err != nil {
		return err
	}
	if len(parts) == 1 {
		lastLines(w, out, &parts[0], "  ")
		return nil
	}

	for i := range parts {
		if err := partScreen(w, out, &parts[i]); err != nil {
			return err
		}
	}

	return nil
}

// fenceMeaning describes the proof that a lost host no longer writes to the volumes of the plugin.
func fenceMeaning(fence string) string {
	switch fence {
	case api.FenceDetach:
		return "ControllerUnpublishVolume cuts a lost host off"
	case api.FenceDetachWhenOff:
		return "ControllerUnpublishVolume cuts off a host that is switched off"
	case api.FenceHook:
		return "an executable switches a lost host off"
	default:
		return ""
	}
}

// nextStart returns a line that shows when a plugin or part will be started next. If no start is
// planned, it returns no line.
func nextStart(next, now time.Time) []output.Field {
	if next.IsZero() {
		return nil
	}
	return []output.Field{output.Named("Next", "started again "+output.In(now, next))}
}

// shownVolumes is the maximum number of volumes on the screen of a plugin.
const shownVolumes = 10

// volumesHere returns the number of volumes of the plugin, and how many of them are staged on this
// host.
func volumesHere(p *api.Plugin) string {
	volumes := fmt.Sprintf("%d, %d staged here", len(p.Volumes), p.Staged)
	if p.MaxVolumes > 0 {
		volumes += fmt.Sprintf(" of at most %d", p.MaxVolumes)
	}
	return volumes
}

// partScreen writes the screen of one part of a plugin that has several parts.
func partScreen(w *bytes.Buffer, out *output.Printer, p *api.PluginPart) error {
	name := output.Joined(" ", output.Dash(p.Type), p.Instance)
	state := output.Joined(": ", p.State, p.Reason) + ", " + output.Since(out.Now(), p.Since)
	out.Headline(w, "  ", out.Mark(output.GoodOr(p.State == api.PluginReady)), name+"  "+state, fmt.Sprintf("restarts %d", p.Restarts))

	if err := out.Fields(w, "    ", append(nextStart(p.Next, out.Now()), partFields(p)...)); err != nil {
		return err
	}

	lastLines(w, out, p, "    ")
	return nil
}

// partFields returns lines that describe one part of a plugin.
func partFields(p *api.PluginPart) []output.Field {
	process := p.Runner
	if p.PID != 0 {
		process += fmt.Sprintf(", pid %d", p.PID)
	}

	optional := []struct{ name, value string }{
		{"Runs", process},
		{"Exit", p.LastExit},
		{"Pending", p.Pending},
		{"File", definedIn(p)},
		{"Socket", p.Socket},
		{"Log", p.LogFile},
	}

	var lines []output.Field
	for _, o := range optional {
		if o.value != "" {
			lines = append(lines, output.Named(o.name, o.value))
		}
	}

	for _, warning := range p.Warnings {
		lines = append(lines, output.Named("Warning", warning))
	}

	wanted := "In file"
	if p.Registered {
		wanted = "Wanted"
	}

	return slices.Concat(lines, settings("Runs as", p.Running), settings(wanted, p.Wanted))
}

// settings returns a line for each key of a plugin definition.
func settings(name string, set map[string]string) []output.Field {
	var lines []output.Field
	for _, key := range slices.Sorted(maps.Keys(set)) {
		lines = append(lines, output.Named(name, key+": "+set[key]))
		name = ""
	}
	return lines
}

// lastLines writes the last log lines of a part that is not ready.
func lastLines(w *bytes.Buffer, out *output.Printer, p *api.PluginPart, indent string) {
	if p.State == api.PluginReady || len(p.LastLog) == 0 {
		return
	}
	out.Line(w, indent, "Last lines of its log:")
	for _, line := range p.LastLog {
		out.Line(w, indent+"  ", line)
	}
}

// definedIn returns the file that defines the part. If the plugin was registered at run time, it
// returns a note about this instead.
func definedIn(p *api.PluginPart) string {
	if p.Registered {
		return "none, registered at run time"
	}
	return p.File
}

// capabilities returns the capabilities of the plugin's controller and node services, without
// duplicates.
func capabilities(p *api.Plugin) []string {
	can := slices.Clone(p.ControllerCapabilities)
	for _, c := range p.NodeCapabilities {
		if !slices.Contains(can, c) {
			can = append(can, c)
		}
	}
	return can
}
