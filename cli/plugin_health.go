package cli

import (
	"bytes"
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type pluginHealthOptions struct{ id string }

func newPluginHealth(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "health ID", Short: "Ask a plugin about the health of its storage and volumes",
		Long: `Ask a plugin about its access to the storage, and for its volumes that have problems. The answer
includes volumes of other hosts. Some plugins cannot answer. For the health of one volume, use
volctl volume status. A unique prefix of the id is enough.`,
		Args: exactly("ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := pluginHealthOptions{id: args[0]}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginHealth(ctx, o, client, out)
			})
		},
	}
}

func runPluginHealth(ctx context.Context, o pluginHealthOptions, client *apiclient.Client, out *output) error {
	p, err := findPlugin(ctx, client, o.id)
	if err != nil {
		return failed(err, "ask plugin %q for its health", o.id)
	}
	h, err := client.PluginHealth(ctx, p.ID)
	if err != nil {
		return failed(explainPlugin(ctx, client, err, p.ID), "ask plugin %q for its health", p.ID)
	}
	ids := make([]string, len(h.Volumes))
	for i, v := range h.Volumes {
		ids[i] = v.ExternalID
	}
	return out.print(h, ids, func(w *bytes.Buffer) error { return healthScreen(w, out, p.ID, h) })
}

func healthScreen(w *bytes.Buffer, out *output, id string, h *api.PluginHealth) error {
	well := len(h.Storage)+len(h.Volumes)+len(h.Silent) == 0
	lines := []pair{{left: out.mark(goodOr(well)) + " " + oneLine(id)}}
	asked := func(call string) bool { return slices.Contains(h.Asked, call) }
	if asked("NodeGetStorageHealth") && len(h.Storage) == 0 {
		lines = append(lines, field("Storage", "nothing is found wrong", ""))
	}
	for _, f := range h.Storage {
		lines = append(lines, field("Storage", finding(f), ""))
	}
	if asked("ControllerListVolumeHealth") {
		words := count(len(h.Volumes), "volume") + " not well"
		if h.More {
			words = "more than " + words
		}
		lines = append(lines, field("Volumes", words, ""))
	}
	for _, s := range h.Silent {
		lines = append(lines, field("Silent", s, ""))
	}
	pairs(w, lines)
	if len(h.Volumes) == 0 {
		return nil
	}
	var rows [][]string
	for _, v := range h.Volumes {
		for _, f := range v.Health {
			rows = append(rows, []string{v.ExternalID, dash(v.Volume), f.Severity, dash(f.Reason), dash(f.Message)})
		}
	}
	return table(w, "  ", []string{"EXTERNAL ID", "VOLUME", "SEVERITY", "REASON", "MESSAGE"}, rows)
}
