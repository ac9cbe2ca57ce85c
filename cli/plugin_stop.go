package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/suggest"
)

type pluginStopOptions struct {
	pluginControl
	force bool
	brief bool
	warn  func(format string, args ...any)
}

func newPluginStop(a *app) *cobra.Command {
	o := pluginStopOptions{warn: a.complain}
	cmd := &cobra.Command{
		Use: "stop ID", Short: "Stop a plugin until it is started again",
		Long: `Stop a plugin that the agent runs, and wait for its end. It stays stopped until
"volctl plugin start", also over a restart of the agent or of the host. With --until-restart
the next agent starts it, as it is wanted before the agent itself is stopped for long or removed.

It is refused (4) while volumes are in use through the plugin. --force stops it all the same:
FUSE mounts that live in its process break, and until it is started again nothing of its volumes
is mounted, and nothing unmounted but by "volctl volume detach --without-plugin".

Of a plugin in several parts all are stopped, or those that --type and --instance name. A
controller may be stopped while another one is ready.`,
		Example: "  volctl plugin stop ebs",
		Args:    exactly("ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if err := o.check(); err != nil {
				return failed(err, "stop plugin %q", o.id)
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginStop(ctx, o, client, out)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.force, "force", false, "stop it under volumes that are in use")
	f.BoolVar(&o.brief, "until-restart", false, "only until the agent is started again")
	o.flags(cmd, "how long to wait for its end; it goes on after that")
	return cmd
}

func runPluginStop(ctx context.Context, o pluginStopOptions, client *apiclient.Client, out *output) error {
	if o.force {
		p, err := client.Plugin(ctx, o.id)
		if err != nil {
			return failed(explainPlugin(ctx, client, err, o.id), "stop plugin %q", o.id)
		}
		switch {
		case p.Staged == 0:
		case o.part.Type == "controller":
			o.warn("volctl: %s in use through plugin %q: unless another controller is ready, nothing is attached or detached until: %s\n",
				count(p.Staged, "volume"), o.id, suggest.Command("volctl plugin start %s", o.id))
		default:
			o.warn("volctl: %s in use through plugin %q: %s, and nothing is mounted or unmounted through it until: %s\n",
				count(p.Staged, "volume"), o.id, breaks(p), suggest.Command("volctl plugin start %s", o.id))
		}
	}
	stop := func(ctx context.Context, id string, co apiclient.ControlOptions) (*api.Plugin, error) {
		co.UntilRestart = o.brief
		return client.StopPlugin(ctx, id, co)
	}
	return o.run(ctx, client, out, o.force, stop, doing{"stop", "stopping", "stopped"})
}
