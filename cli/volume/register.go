package volume

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type registerOptions struct{ file volumeFile }

func newRegister(a *command.App) *cobra.Command {
	var o registerOptions
	cmd := &cobra.Command{
		Use: "register FILE|-", Short: "Register volumes that exist at their plugin",
		Long: `Register the volumes of a file (- is stdin) that exist at their plugin. external_id identifies
each volume. If a volume is registered already, the command merges the changes. An unchanged
volume stays as it is, with exit code 0.

The command also reads Kubernetes PersistentVolumes with a csi source, and the output of
nomad volume status -json ID. Their plugin is the one with the driver that they name, or the one
that --plugin names. The command prints on stderr the steps that you must take elsewhere.`,
		Example: `  volctl volume register data.yaml
  volctl volume register postgres.hcl
  kubectl get pv pvc-1 -o yaml | volctl volume register -
  nomad volume status -json data | volctl volume register - --plugin ebs`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				if err := o.file.read(ctx, a, args[0]); err != nil {
					return err
				}
				return runRegister(ctx, o, client, out)
			})
		},
	}
	o.file.flag(a, cmd)
	command.NomadFlags(cmd.Flags(), "detach", "verbose", "namespace", "policy-override")

	return cmd
}

func runRegister(ctx context.Context, o registerOptions, client *apiclient.Client, out *output.Printer) error {
	o.file.warn(out)
	if err := o.file.settle(ctx, client); err != nil {
		return err
	}
	state := func(s api.VolumeSpec) output.Status { return command.PluginProgress(client, s.PluginID) }
	return apply(ctx, "register", o.file.specs, client, out, state, func(s api.VolumeSpec) (*api.VolumeResult, error) {
		r, err := client.RegisterVolume(ctx, s, false)
		if err == nil {
			r.Warnings = append(r.Warnings, o.file.warnings[s.ID]...)
		}
		return r, err
	})
}
