package volume

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/recipe"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

type initOptions struct{ file, plugin, secretDir string }

func newInit(a *command.App) *cobra.Command {
	o := initOptions{file: "volume.yaml"}
	cmd := &cobra.Command{
		Use: "init [FILE]", Short: "Write a commented volume file to start from",
		Long: `Write a commented volume file to start from. FILE is volume.yaml by default, and - is stdout. The
file extension selects the format: YAML, HCL (.hcl), or JSON (.json, which has no comments). The
command does not overwrite an existing file.

With --plugin, the file has the parameters and secrets of that driver. "volctl plugin init" lists the
known drivers.`,
		Example: `  volctl volume init data.yaml
  volctl volume init --plugin hetzner data.yaml
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

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.plugin, "plugin", "", "`NAME` of a driver, as in volctl plugin init")
	f.StringVar(&o.secretDir, "secret-dir", recipe.DefaultSecretDir, "`DIR` with the files of the secrets that the volume file names")
	return cmd
}

func runInit(_ context.Context, o initOptions, _ *apiclient.Client, out *output.Printer) error {
	if o.plugin != "" {
		return o.ofDriver(out)
	}
	text, err := spec.ExampleIn(spec.Ending(o.file))
	if err != nil {
		return command.Failed(err, "write %q", o.file)
	}
	return command.WriteNew(out, text, o.file, "volctl volume init ANOTHER-FILE", suggest.Command("volctl volume create %s", o.file))
}

// ofDriver writes a volume file for a known driver.
func (o *initOptions) ofDriver(out *output.Printer) error {
	r, ok := recipe.Find(o.plugin)
	if !ok {
		hint := "volctl plugin init lists the drivers"
		if near := spec.Near(o.plugin, recipe.Names()); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		return command.Usage(hint, "no recipe for %q is known", o.plugin)
	}
	dir, err := filepath.Abs(o.secretDir)
	if err != nil {
		return command.Failed(err, "write %q", o.file)
	}

	text := r.VolumeFile(dir)
	if format := spec.Ending(o.file); format == spec.FormatHCL || format == spec.FormatJSON {
		specs, err := spec.Read("volume.yaml", []byte(text))
		if err != nil {
			return command.Failed(err, "write %q", o.file)
		}
		written, err := spec.Write(format, []api.VolumeSpec{specs[0].Spec})
		if err != nil {
			return command.Failed(err, "write %q", o.file)
		}
		text = string(written)
	}

	then := suggest.Command("volctl volume register %s", o.file)
	if r.Creates() {
		then = suggest.Command("volctl volume create %s", o.file)
	}
	return command.WriteNew(out, text, o.file, suggest.Command("volctl volume init --plugin %s ANOTHER-FILE", o.plugin), then)
}
