package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/suggest"
)

type volumeInitOptions struct{ file string }

func newVolumeInit(a *app) *cobra.Command {
	o := volumeInitOptions{file: "volume.yaml"}
	return &cobra.Command{
		Use: "init [FILE]", Short: "Write a commented volume file to start from",
		Long: `Write a commented volume file to start from. FILE is volume.yaml by default, and - is stdout. The
file extension selects the format: YAML, HCL (.hcl), or JSON (.json, which has no comments). The
command does not overwrite an existing file.`,
		Example: `  volctl volume init data.yaml
  volctl volume init data.hcl`,
		Args: between(0, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.file = args[0]
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runVolumeInit(ctx, o, client, out)
			})
		},
	}
}

func runVolumeInit(_ context.Context, o volumeInitOptions, _ *apiclient.Client, out *output) error {
	text, err := spec.ExampleIn(spec.Ending(o.file))
	if err != nil {
		return failed(err, "write %q", o.file)
	}
	return writeNew(out, text, o.file, "volctl volume init ANOTHER-FILE", suggest.Command("volctl volume create %s", o.file))
}
