package volume

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type initOptions struct{ file string }

func newInit(a *command.App) *cobra.Command {
	o := initOptions{file: "volume.yaml"}
	return &cobra.Command{
		Use: "init [FILE]", Short: "Write a commented volume file to start from",
		Long: `Write a commented volume file to start from. FILE is volume.yaml by default, and - is stdout. The
file extension selects the format: YAML, HCL (.hcl), or JSON (.json, which has no comments). The
command does not overwrite an existing file.`,
		Example: `  volctl volume init data.yaml
  volctl volume init data.hcl`,
		Args: command.Between(0, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.file = args[0]
			}
			return a.Do(cmd, func(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
				return runInit(ctx, o, client, out)
			})
		},
	}
}

func runInit(_ context.Context, o initOptions, _ *apiclient.Client, out *output.Printer) error {
	text, err := spec.ExampleIn(spec.Ending(o.file))
	if err != nil {
		return command.Failed(err, "write %q", o.file)
	}
	return command.WriteNew(out, text, o.file, "volctl volume init ANOTHER-FILE", suggest.Command("volctl volume create %s", o.file))
}
