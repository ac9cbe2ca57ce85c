package volume

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type exportOptions struct {
	id       string
	all, hcl bool
}

func newExport(a *command.App) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use: "export ID | --all", Short: "Write the volume file that registers a volume",
		Long: `Write the volume file that registers a volume as it is, or all volumes, to stdout. The format is
YAML, or JSON with -o json, or HCL with --hcl. An HCL file contains one volume. The file contains
secrets as references. For secret values that the agent keeps, it only states that they exist.`,
		Example: `  volctl volume export data > data.yaml
  volctl volume export --all > volumes.yaml`,
		Args: command.Between(0, "ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.id = args[0]
			}
			return a.Read(cmd, o.run)
		},
	}

	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&o.all, "all", false, "export all volumes")
	cmd.Flags().BoolVar(&o.hcl, "hcl", false, "write HCL")

	return cmd
}

func (o exportOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	switch {
	case o.all && o.id != "":
		return command.Usage("", "--all and a volume exclude each other")
	case !o.all && o.id == "":
		return command.Usage("volctl volume list", "name a volume, or use --all")
	case o.hcl && o.all:
		return command.Usage("remove --hcl, or name a volume", "a file in HCL holds one volume")
	case o.hcl && out.Format != output.FormatTable:
		return command.Usage("", "--hcl and -o exclude each other")
	}

	specs, ids, err := o.find(ctx, client)
	if err != nil {
		return err
	}

	format := spec.FormatYAML
	switch {
	case out.Human() && out.Quiet:
		return out.Print(nil, ids, nil)
	case o.hcl:
		format = spec.FormatHCL
	case out.Format == output.FormatJSON, out.Format == output.FormatTemplate:
		format = spec.FormatJSON
	}

	text, err := spec.Write(format, specs)
	switch {
	case err != nil:
		return command.Failed(err, "export %s", output.QuotedList(ids))
	case out.Format == output.FormatTemplate:
		return out.Print(json.RawMessage(text), ids, nil)
	}

	return out.Write(text)
}

// find returns the volumes to export, and their ids.
func (o exportOptions) find(ctx context.Context, client *apiclient.Client) (specs []api.VolumeSpec, ids []string, err error) {
	if !o.all {
		v, err := command.FindVolume(ctx, client, o.id)
		if err != nil {
			return nil, nil, command.Failed(err, "export volume %q", o.id)
		}
		return []api.VolumeSpec{v.Spec}, []string{v.Spec.ID}, nil
	}

	volumes, err := client.Volumes(ctx)
	for _, v := range volumes {
		specs, ids = append(specs, v.Spec), append(ids, v.Spec.ID)
	}

	return specs, ids, command.Failed(err, "export the volumes")
}
