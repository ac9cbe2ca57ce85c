package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/apiclient"
)

type pluginRestartOptions struct {
	pluginControl
	yes bool
	ask asker
}

func newPluginRestart(a *app) *cobra.Command {
	var o pluginRestartOptions
	cmd := &cobra.Command{
		Use: "restart ID", Short: "Stop a plugin and start it again",
		Long: `Stop a plugin that the agent runs, start it again, and wait until it is ready. A changed file
comes into force, also while volumes are in use. A plugin that was stopped is started.

While volumes are in use through the plugin it asks first on a terminal; without one it is
refused (4) without -y. For most drivers a restart is harmless, since the kernel holds the
mounts. FUSE mounts that live in the plugin's process break.`,
		Example: `  volctl plugin restart ebs
  volctl plugin restart ebs -y`,
		Args: exactly("ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id, o.ask = args[0], a.asker(o.yes)
			if err := o.check(); err != nil {
				return failed(err, "restart plugin %q", o.id)
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginRestart(ctx, o, client, out)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask, and restart it under volumes that are in use")
	o.flags(cmd, "how long to wait until it is ready; it goes on after that")
	return cmd
}

func runPluginRestart(ctx context.Context, o pluginRestartOptions, client *apiclient.Client, out *output) error {
	force := o.yes
	if o.ask != nil {
		var err error
		if force, err = o.confirmed(ctx, client); err != nil {
			return failed(err, "restart plugin %q", o.id)
		}
	}
	return o.run(ctx, client, out, force, client.RestartPlugin, doing{"restart", "restarting", "restarted"})
}

// confirmed asks where volumes are in use, and says whether they were agreed
// about.
func (o *pluginRestartOptions) confirmed(ctx context.Context, client *apiclient.Client) (bool, error) {
	p, err := client.Plugin(ctx, o.id)
	if err != nil {
		return false, explainPlugin(ctx, client, err, o.id)
	}
	if p.Staged == 0 {
		return false, nil
	}
	question := fmt.Sprintf("Restart plugin %s, with %s in use through it? FUSE mounts that live in its process break.",
		quotedList([]string{o.id}), count(p.Staged, "volume"))
	yes, err := o.ask(ctx, question)
	if err == nil && yes {
		return true, nil
	}
	return false, orNotConfirmed(err)
}
