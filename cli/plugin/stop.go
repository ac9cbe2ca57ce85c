package plugin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type stopOptions struct {
	controlOptions
	force bool
	brief bool
	warn  func(format string, args ...any)
}

func newStop(a *command.App) *cobra.Command {
	o := stopOptions{warn: a.Complain}
	cmd := &cobra.Command{
		Use: "stop ID", Short: "Stop a plugin until you start it again",
		Long: `Stop a plugin that the agent runs, and wait until it has stopped. The plugin stays stopped until
you run "volctl plugin start", even if the agent or the host restarts. With --until-restart, the
agent starts the plugin at its own next start. Use it before you stop the agent for a long time or
remove it.

The command is refused (4) while volumes are in use through the plugin. --force stops it anyway.
FUSE mounts that live in its process then break. Until you start the plugin again, none of its
volumes can be mounted, and only "volctl volume detach --without-plugin" can unmount them.

If the plugin has several parts, the command stops all of them, or only those that --type and
--instance select. You can stop a controller while another one is ready.`,
		Example: "  volctl plugin stop ebs",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: o.action(a, "stop", o.run),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.force, "force", false, "stop the plugin even if volumes are in use through it")
	f.BoolVar(&o.brief, "until-restart", false, "stop the plugin only until the next start of the agent")
	o.flags(cmd, "how long to wait until it has stopped; the agent continues after that")
	return cmd
}

func (o *stopOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if o.force {
		p, err := client.Plugin(ctx, o.id)
		if err != nil {
			return command.Failed(command.ExplainPlugin(ctx, client, err, o.id), "stop plugin %q", o.id)
		}
		switch {
		case p.Staged == 0:
		case o.part.Type == api.PartController:
			o.warn("volctl: %s in use through plugin %q: unless another controller is ready, nothing is attached or detached until: %s\n",
				output.Count(p.Staged, "volume"), o.id, suggest.Command("volctl plugin start %s", o.id))
		default:
			o.warn("volctl: %s in use through plugin %q: %s, and nothing is mounted or unmounted through it until: %s\n",
				output.Count(p.Staged, "volume"), o.id, breaks(p), suggest.Command("volctl plugin start %s", o.id))
		}
	}
	stop := func(ctx context.Context, id string, co apiclient.ControlOptions) (*api.Plugin, error) {
		co.UntilRestart = o.brief
		return client.StopPlugin(ctx, id, co)
	}
	return o.send(ctx, client, out, o.force, stop, doing{"stop", "stopping", "stopped"})
}
