package volume

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type deregisterOptions struct {
	volume         string
	force          bool
	forget         bool
	ignoreNotFound bool
	ask            command.Asker
}

func newDeregister(a *command.App) *cobra.Command {
	var (
		o   deregisterOptions
		yes bool
	)

	cmd := &cobra.Command{
		Use: "deregister ID", Short: "Forget a volume and keep its data",
		Long: `Forget a volume. Its data stays at the plugin. The command is refused while the volume has claims.
--force also drops the claims, unless a live alloc holds one of them. It calls no plugin, unmounts
nothing, and prints the leftovers. On a terminal the command asks for confirmation first.

After --force, the agent keeps a record of the leftovers and undoes them when the plugin is ready.
Until then, node status shows them. No other volume may use their paths, and the agent does not
stage the same storage. If the plugin never returns, --force --forget discards that record,
together with the volume or later. The remaining mounts and attachments stay until you or a reboot
remove them. The command prints them.

A shared volume is deregistered for all hosts. The command is refused while any host holds it. If
this host holds it, --force makes only this host forget it, also while etcd does not answer. The host
keeps its hold until the leftovers are undone, so --forget is refused.`,
		Example: `  volctl volume deregister data -y
  volctl volume deregister data --force -y
  volctl volume deregister data --force --forget -y`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume, o.ask = args[0], a.Asker(yes)
			if err := command.CheckVolumeID(o.volume); err != nil {
				return command.Failed(err, "deregister volume %q", o.volume)
			}
			if o.forget && !o.force {
				return command.Usage(suggest.Command("volctl volume deregister %s --force --forget", o.volume), "--forget goes with --force only")
			}

			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.force, "force", false, "also drop the claims, without unmounting")
	f.BoolVar(&o.forget, "forget", false, "with --force: discard the new and earlier leftovers, on this host and at the plugin")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "exit 0 if the volume does not exist")
	command.NomadFlags(cmd.Flags(), "namespace", "type")

	return cmd
}

func (o deregisterOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if o.ask != nil {
		// Check that the volume exists before asking the user. With --forget, the volume may
		// already be deregistered, because the command then discards the volume's leftovers.
		if _, err := client.Volume(ctx, o.volume); err != nil && !o.forget {
			if command.IsNotFound(err) && o.ignoreNotFound {
				return out.Print(api.DeregisterResult{}, nil, output.NothingToDo)
			}
			return command.Failed(command.Explain(ctx, client, err, o.volume), "deregister volume %q", o.volume)
		}

		question := "Forget volume " + output.QuotedList([]string{o.volume}) + " (its data stays at the plugin)?"
		switch {
		case o.forget:
			question = "Forget volume " + output.QuotedList([]string{o.volume}) + " with its claims, and discard its leftovers on this host and at the plugin permanently?"
		case o.force:
			question = "Forget volume " + output.QuotedList([]string{o.volume}) + " with its claims, and leave its mounts where they are?"
		}

		if yes, err := o.ask(ctx, question); err != nil || !yes {
			return command.Failed(command.NotConfirmed(err), "deregister volume %q", o.volume)
		}
	}

	forget := func() (*api.DeregisterResult, error) { return client.DeregisterVolume(ctx, o.volume, o.force) }
	if o.forget {
		forget = func() (*api.DeregisterResult, error) { return client.ForgetVolume(ctx, o.volume) }
	}

	r, err := forget()
	if command.IsNotFound(err) && o.ignoreNotFound {
		return out.Print(api.DeregisterResult{}, nil, output.NothingToDo)
	}
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "deregister volume %q", o.volume)
	}

	return out.Print(r, []string{o.volume}, done("deregistered", o.volume, r.Left))
}

// done returns a screen with the result for a volume, and with the volume's leftovers.
func done(what, volume string, left []string) func(*bytes.Buffer) error {
	return func(w *bytes.Buffer) error {
		w.WriteString(what + " volume " + output.QuotedList([]string{volume}) + "\n")
		for _, l := range left {
			w.WriteString("left: " + output.OneLine(l) + "\n")
		}
		return nil
	}
}
