package plugin

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type deregisterOptions struct {
	controlOptions
	force, ignoreNotFound bool
	warn                  func(format string, args ...any)
}

func newDeregister(a *command.App) *cobra.Command {
	o := deregisterOptions{warn: a.Complain}
	cmd := &cobra.Command{
		Use: "deregister ID", Short: "Remove a plugin that was registered at run time",
		Long: `Remove a plugin that you registered with "volctl plugin register", and wait until it has stopped.
Its volumes stay registered, and its state and log stay on the host. If a file of the plugin
directory defines the plugin, the command is refused (4): remove the file instead.

The command is refused (4) while volumes are in use through the plugin. --force removes it anyway.
FUSE mounts that live in its process then break. Until you register the plugin again, none of its
volumes can be mounted, and only "volctl volume detach --without-plugin" can unmount them.`,
		Example: "  volctl plugin deregister ebs",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: o.action(a, "deregister", o.run),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.force, "force", false, "remove the plugin even if volumes are in use through it")
	f.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "exit 0 if the plugin does not exist")
	o.flags(cmd, "how long to wait until it has stopped; the agent continues after that")
	return cmd
}

func (o *deregisterOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if o.force {
		if p, err := client.Plugin(ctx, o.id); err == nil && p.Staged > 0 {
			o.warn("volctl: %s in use through plugin %q: %s, and nothing is mounted or unmounted through it until it is registered again\n",
				output.Count(p.Staged, "volume"), o.id, breaks(p))
		}
	}
	co, said := apiclient.ControlOptions{Force: o.force}, "deregistered plugin "+output.QuotedList([]string{o.id})
	if o.noWait {
		said += "; it is being stopped"
	} else {
		co.Wait = o.timeout
	}
	call, cancel := context.WithTimeout(ctx, o.timeout+command.AnswerGrace)
	defer cancel()
	err := client.DeregisterPlugin(call, o.id, co)
	switch {
	case command.IsNotFound(err) && o.ignoreNotFound:
		return out.Print(api.Done{}, nil, output.NothingToDo)
	case err != nil:
		return command.Failed(o.explain(ctx, client, err), "deregister plugin %q", o.id)
	}
	return out.Print(api.Done{}, []string{o.id}, func(w *bytes.Buffer) error {
		w.WriteString(said + "\n")
		return nil
	})
}
