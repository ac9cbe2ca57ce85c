package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
)

type volumeExportOptions struct {
	id       string
	all, hcl bool
}

func newVolumeExport(a *app) *cobra.Command {
	var o volumeExportOptions
	cmd := &cobra.Command{
		Use: "export ID | --all", Short: "Write the volume file that registers a volume",
		Long: `Write the volume file that registers a volume as it is, or all volumes, to stdout. The format is
YAML, or JSON with -o json, or HCL with --hcl. An HCL file contains one volume. The file contains
secrets as references. For secret values that the agent keeps, it only states that they exist.`,
		Example: `  volctl volume export data > data.yaml
  volctl volume export --all > volumes.yaml`,
		Args: between(0, "ID"), ValidArgsFunction: completeArg(a, volumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.id = args[0]
			}
			return a.read(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runVolumeExport(ctx, o, client, out)
			})
		},
	}

	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&o.all, "all", false, "export all volumes")
	cmd.Flags().BoolVar(&o.hcl, "hcl", false, "write HCL")

	return cmd
}

func runVolumeExport(ctx context.Context, o volumeExportOptions, client *apiclient.Client, out *output) error {
	switch {
	case o.all && o.id != "":
		return usage("", "--all and a volume exclude each other")
	case !o.all && o.id == "":
		return usage("volctl volume list", "say which volume, or --all")
	case o.hcl && o.all:
		return usage("leave --hcl out, or name a volume", "a file in HCL holds one volume")
	case o.hcl && out.format != formatTable:
		return usage("", "--hcl and -o exclude each other")
	}

	specs, ids, err := o.find(ctx, client)
	if err != nil {
		return err
	}

	format := spec.FormatYAML
	switch {
	case out.human() && out.quiet:
		return out.print(nil, ids, nil)
	case o.hcl:
		format = spec.FormatHCL
	case out.format == formatJSON, out.format == formatTemplate:
		format = spec.FormatJSON
	}

	text, err := spec.Write(format, specs)
	switch {
	case err != nil:
		return failed(err, "export %s", quotedList(ids))
	case out.format == formatTemplate:
		return out.print(json.RawMessage(text), ids, nil)
	}

	return out.write(text)
}

// find returns the volumes to export.
func (o volumeExportOptions) find(ctx context.Context, client *apiclient.Client) (specs []api.VolumeSpec, ids []string, err error) {
	if !o.all {
		v, err := findVolume(ctx, client, o.id)
		if err != nil {
			return nil, nil, failed(err, "export volume %q", o.id)
		}
		return []api.VolumeSpec{v.Spec}, []string{v.Spec.ID}, nil
	}

	volumes, err := client.Volumes(ctx)
	for _, v := range volumes {
		specs, ids = append(specs, v.Spec), append(ids, v.Spec.ID)
	}

	return specs, ids, failed(err, "export the volumes")
}
