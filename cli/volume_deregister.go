package cli

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/suggest"
)

type volumeDeregisterOptions struct {
	volume         string
	force          bool
	forget         bool
	ignoreNotFound bool
	ask            asker
}

func newVolumeDeregister(a *app) *cobra.Command {
	var (
		o   volumeDeregisterOptions
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
remove them. The command prints them.`,
		Example: `  volctl volume deregister data -y
  volctl volume deregister data --force -y
  volctl volume deregister data --force --forget -y`,
		Args: exactly("ID"), ValidArgsFunction: completeArg(a, volumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume, o.ask = args[0], a.asker(yes)
			if err := checkVolumeID(o.volume); err != nil {
				return failed(err, "deregister volume %q", o.volume)
			}
			if o.forget && !o.force {
				return usage(suggest.Command("volctl volume deregister %s -force --forget", o.volume), "--forget goes with -force only")
			}

			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runVolumeDeregister(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.force, "force", false, "also drop the claims, without unmounting")
	f.BoolVar(&o.forget, "forget", false, "with --force: discard the new and earlier leftovers, on this host and at the plugin")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "exit 0 if the volume does not exist")

	return cmd
}

func runVolumeDeregister(ctx context.Context, o volumeDeregisterOptions, client *apiclient.Client, out *output) error {
	if o.ask != nil {
		// The command checks that the volume exists before it asks. With --forget, a volume that
		// was already deregistered is fine: its leftovers are given up.
		if _, err := client.Volume(ctx, o.volume); err != nil && !o.forget {
			if isNotFound(err) && o.ignoreNotFound {
				return out.print(api.DeregisterResult{}, nil, nothingToDo)
			}
			return failed(explain(ctx, client, err, o.volume), "deregister volume %q", o.volume)
		}

		question := "Forget volume " + quotedList([]string{o.volume}) + " (its data stays at the plugin)?"
		switch {
		case o.forget:
			question = "Forget volume " + quotedList([]string{o.volume}) + " with its claims, and what is left of it on this host and at the plugin for good?"
		case o.force:
			question = "Forget volume " + quotedList([]string{o.volume}) + " with its claims, and leave its mounts where they are?"
		}

		if yes, err := o.ask(ctx, question); err != nil || !yes {
			return failed(notConfirmed(err), "deregister volume %q", o.volume)
		}
	}

	forget := func() (*api.DeregisterResult, error) { return client.DeregisterVolume(ctx, o.volume, o.force) }
	if o.forget {
		forget = func() (*api.DeregisterResult, error) { return client.ForgetVolume(ctx, o.volume) }
	}

	r, err := forget()
	if isNotFound(err) && o.ignoreNotFound {
		return out.print(api.DeregisterResult{}, nil, nothingToDo)
	}
	if err != nil {
		return failed(explain(ctx, client, err, o.volume), "deregister volume %q", o.volume)
	}

	return out.print(r, []string{o.volume}, done("deregistered", o.volume, r.Left))
}

// done returns a screen that says what happened to a volume, and lists its leftovers.
func done(what, volume string, left []string) func(*bytes.Buffer) error {
	return func(w *bytes.Buffer) error {
		w.WriteString(what + " volume " + quotedList([]string{volume}) + "\n")
		for _, l := range left {
			w.WriteString("left: " + oneLine(l) + "\n")
		}
		return nil
	}
}
