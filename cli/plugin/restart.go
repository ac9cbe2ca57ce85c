package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type restartOptions struct {
	controlOptions
	yes  bool
	ask  command.Asker
	warn func(format string, args ...any)
}

func newRestart(a *command.App) *cobra.Command {
	o := restartOptions{warn: a.Complain}
	cmd := &cobra.Command{
		Use: "restart ID", Short: "Stop a plugin and start it again",
		Long: `Stop a plugin that the agent runs, start it again, and wait until it is ready. A changed file
takes effect, even while volumes are in use. A plugin that you stopped is started.

While volumes are in use through the plugin, the command shows how many claims have FUSE mounts
and asks for confirmation. Without a terminal, the command is refused (4) unless you give -y. For
most drivers a restart is harmless, because the kernel holds the mounts. FUSE mounts that live in
the plugin's process break.

If the plugin has several parts, the command restarts all of them, or only those that --type and
--instance select. A controller restarts without a question while another controller is ready.`,
		Example: `  volctl plugin restart ebs
  volctl plugin restart ebs -y
  volctl plugin restart ebs --type controller --instance a`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: o.action(a, "restart", func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
			o.ask = a.Asker(o.yes)
			return runRestart(ctx, o, client, out)
		}),
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask, and restart the plugin even if volumes are in use through it")
	o.flags(cmd, "how long to wait until it is ready; the agent continues after that")

	return cmd
}

func runRestart(ctx context.Context, o restartOptions, client *apiclient.Client, out *output.Printer) error {
	force := o.yes
	if o.yes && o.part.Type != api.PartController {
		if p, err := client.Plugin(ctx, o.id); err == nil && p.FUSEClaims > 0 {
			o.warn("volctl: %s in use through plugin %q: %s\n", output.Count(p.Staged, "volume"), o.id, breaks(p))
		}
	}

	// The restart of a controller does not break mounts. The agent itself checks whether another
	// controller is ready.
	if o.ask != nil && o.part.Type != api.PartController {
		var err error
		if force, err = o.confirmed(ctx, client); err != nil {
			return command.Failed(err, "restart plugin %q", o.id)
		}
	}

	return o.send(ctx, client, out, force, client.RestartPlugin, doing{"restart", "restarting", "restarted"})
}

// confirmed asks the user for confirmation if any volume of the plugin is in use. It returns true
// if the user has agreed to restart the plugin although volumes are in use.
func (o *restartOptions) confirmed(ctx context.Context, client *apiclient.Client) (bool, error) {
	p, err := client.Plugin(ctx, o.id)
	if err != nil {
		return false, command.ExplainPlugin(ctx, client, err, o.id)
	}
	if p.Staged == 0 {
		return false, nil
	}

	question := fmt.Sprintf("%s in use through plugin %s: %s. Restart it?",
		output.Count(p.Staged, "volume"), output.QuotedList([]string{o.id}), breaks(p))
	yes, err := o.ask(ctx, question)
	if err == nil && yes {
		return true, nil
	}

	return false, command.NotConfirmed(err)
}
