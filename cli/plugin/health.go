package plugin

import (
	"bytes"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type healthOptions struct{ id string }

func newHealth(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "health ID", Short: "Ask a plugin about the health of its storage and volumes",
		Long: `Ask a plugin about its access to the storage, and for its volumes that have problems. The answer
includes volumes of other hosts. Some plugins cannot answer. For the health of one volume, use
volctl volume status. A unique prefix of the id is enough.`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := healthOptions{id: args[0]}
			return a.Do(cmd, o.run)
		},
	}
}

func (o healthOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	p, err := command.FindPlugin(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "ask plugin %q for its health", o.id)
	}
	h, err := client.PluginHealth(ctx, p.ID)
	if err != nil {
		return command.Failed(command.ExplainPlugin(ctx, client, err, p.ID), "ask plugin %q for its health", p.ID)
	}
	ids := make([]string, len(h.Volumes))
	for i, v := range h.Volumes {
		ids[i] = v.ExternalID
	}
	return out.Print(h, ids, func(w *bytes.Buffer) error { return healthScreen(w, out, p.ID, h) })
}

func healthScreen(w *bytes.Buffer, out *output.Printer, id string, h *api.PluginHealth) error {
	well := len(h.Storage)+len(h.Volumes)+len(h.Silent) == 0
	out.Headline(w, "", out.Mark(output.GoodOr(well)), id)

	var lines []output.Field
	asked := func(call string) bool { return slices.Contains(h.Asked, call) }
	if asked("NodeGetStorageHealth") && len(h.Storage) == 0 {
		lines = append(lines, output.Named("Storage", "no problem found"))
	}
	for _, f := range h.Storage {
		lines = append(lines, output.Named("Storage", output.Finding(f)))
	}
	if asked("ControllerListVolumeHealth") {
		words := output.Count(len(h.Volumes), "volume") + " not well"
		if h.More {
			words = "more than " + words
		}
		lines = append(lines, output.Named("Volumes", words))
	}
	for _, s := range h.Silent {
		lines = append(lines, output.Named("Silent", s))
	}
	if err := out.Fields(w, "  ", lines); err != nil || len(h.Volumes) == 0 {
		return err
	}

	var rows [][]string
	for _, v := range h.Volumes {
		for _, f := range v.Health {
			rows = append(rows, []string{v.ExternalID, output.Dash(v.Volume), f.Severity, output.Dash(f.Reason), output.Dash(f.Message)})
		}
	}
	return out.Table(w, "  ", []string{"External ID", "Volume", "Severity", "Reason", "Message"}, rows)
}
