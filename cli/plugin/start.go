package plugin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type startOptions struct{ controlOptions }

func newStart(a *command.App) *cobra.Command {
	var o startOptions
	cmd := &cobra.Command{
		Use: "start ID", Short: "Start a plugin that was stopped",
		Long: `Start a plugin that you stopped with "volctl plugin stop", and wait until it is ready. If the
plugin failed or is backing off, the agent tries it again at once. A running plugin continues to
run.`,
		Example: "  volctl plugin start ebs",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: o.action(a, "start", func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
			return o.send(ctx, client, out, false, client.StartPlugin, doing{"start", "starting", "started"})
		}),
	}
	cmd.Flags().SortFlags = false
	o.flags(cmd, "how long to wait until it is ready; the agent continues after that")
	return cmd
}
