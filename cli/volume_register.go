package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type volumeRegisterOptions struct{ specs []api.VolumeSpec }

func newVolumeRegister(a *app) *cobra.Command {
	var o volumeRegisterOptions
	return &cobra.Command{
		Use: "register FILE|-", Short: "Take over volumes that exist at their plugin",
		Long: `Take over the volumes of a file (- is stdin) that exist at their plugin; external_id says
which they are. For a volume that is registered already, the changes are merged. An
unchanged one is left as it is, with exit code 0.`,
		Example: "  volctl volume register data.yaml", Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) (err error) {
				if o.specs, err = a.readSpecs(ctx, args[0]); err != nil {
					return err
				}
				return runVolumeRegister(ctx, o, client, out)
			})
		},
	}
}

func runVolumeRegister(ctx context.Context, o volumeRegisterOptions, client *apiclient.Client, out *output) error {
	state := func(s api.VolumeSpec) told { return pluginProgress(client, s.PluginID) }
	return apply(ctx, "register", o.specs, client, out, state, func(s api.VolumeSpec) (*api.VolumeResult, error) {
		return client.RegisterVolume(ctx, s, false)
	})
}
