package volume

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type shareOptions struct {
	volume string
	force  bool
}

func newShare(a *command.App) *cobra.Command {
	var o shareOptions
	cmd := &cobra.Command{
		Use: "share ID", Short: "Share a volume of this host with all hosts of the cluster",
		Long: `Share a volume of this host with all hosts of the cluster, also while it is mounted. From then on, a
host uses the volume only while it has a hold on it, and each host can claim, change and delete it.

Before that, each registered host answers whether it uses the same storage on its own. The command
is refused if a host does, or does not answer. --force shares the volume without these answers. Two
hosts that then use the storage at the same time can destroy its data.

The command is also refused if the plugin file has scope: host, or if only this host can reach the
storage. The cluster must have no other volume with the same id or the same storage, and no secret
of the volume may be sealed.`,
		Example: `  volctl volume share data`,
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume = args[0]
			if err := command.CheckVolumeID(o.volume); err != nil {
				return command.Failed(err, "share volume %q", o.volume)
			}
			return a.Do(cmd, o.run)
		},
	}

	cmd.Flags().BoolVar(&o.force, "force", false, "do not ask the other hosts whether they use the storage")
	return cmd
}

func (o shareOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	r, err := client.ShareVolume(ctx, o.volume, o.force)
	if err != nil {
		return command.Failed(command.Explain(ctx, client, err, o.volume), "share volume %q", o.volume)
	}
	return printScope(out, r, o.volume, "shared")
}

func newUnshare(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "unshare ID", Short: "Make a shared volume a volume of this host",
		Long: `Make a shared volume a volume of this host alone, also while it is mounted here. The command is
refused while another host uses the volume. The other hosts no longer know the volume after that.`,
		Example: `  volctl volume unshare data`,
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if err := command.CheckVolumeID(id); err != nil {
				return command.Failed(err, "unshare volume %q", id)
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				r, err := client.UnshareVolume(ctx, id)
				if err != nil {
					return command.Failed(command.Explain(ctx, client, err, id), "unshare volume %q", id)
				}
				return printScope(out, r, id, "unshared")
			})
		},
	}
}

// printScope prints the result of a command that changes the scope of a volume.
func printScope(out *output.Printer, r *api.VolumeResult, id, done string) error {
	return out.Print(r, []string{id}, func(w *bytes.Buffer) error {
		if r.Outcome == api.OutcomeUnchanged {
			w.WriteString("volume " + output.QuotedList([]string{id}) + " is " + done + " already\n")
			return nil
		}
		w.WriteString(done + " volume " + output.QuotedList([]string{id}) + "\n")
		return nil
	})
}
