package cli

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type pluginVolumesOptions struct {
	id    string
	limit int
	other bool
}

func newPluginVolumes(a *app) *cobra.Command {
	var o pluginVolumesOptions
	cmd := &cobra.Command{
		Use: "volumes ID", Short: "List all volumes that a plugin's storage has",
		Long: `Ask a plugin for all volumes that its storage has, registered on this host or not. The list
includes volumes of other hosts, and volumes that a create without a known result may have left.
The command asks page by page, until the last page or Ctrl-C. Some plugins cannot answer. To list
the volumes of this host, use volctl volume list.`,
		Example: "  volctl plugin volumes ebs --unregistered",
		Args:    exactly("ID"), ValidArgsFunction: completeArg(a, pluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if o.limit < 0 {
				return usage("", "--limit %d is not a count", o.limit)
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runPluginVolumes(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.limit, "limit", 1000, "ask for at most `N` volumes; 0 asks for all")
	f.BoolVar(&o.other, "unregistered", false, "show only volumes that are not registered on this host")

	return cmd
}

func runPluginVolumes(ctx context.Context, o pluginVolumesOptions, client *apiclient.Client, out *output) error {
	p, err := findPlugin(ctx, client, o.id)
	if err != nil {
		return failed(err, "list the volumes of plugin %q", o.id)
	}

	volumes, ids, rows := []api.StorageVolume{}, []string{}, [][]string{}
	more, err := client.PluginVolumes(ctx, p.ID, o.limit, func(v api.StorageVolume) error {
		if v.Volume == "" || !o.other {
			volumes, ids, rows = append(volumes, v), append(ids, v.ExternalID), append(rows, storageRow(&v, out.wide()))
		}
		return nil
	})

	if err != nil {
		return failed(explainPlugin(ctx, client, err, p.ID), "list the volumes of plugin %q", p.ID)
	}

	err = out.print(volumes, ids, func(w *bytes.Buffer) error {
		header := []string{"External ID", "Volume", "Capacity", "Source", "Nodes", "Health"}
		if out.wide() {
			header = append(header, "Topology", "Context")
		}
		return table(w, "", header, rows)
	})

	if more {
		out.note("there are more; --limit 0 asks for all")
	}

	return err
}

func storageRow(v *api.StorageVolume, wide bool) []string {
	source := ""
	switch {
	case v.SnapshotID != "":
		source = "snapshot " + v.SnapshotID
	case v.CloneID != "":
		source = "volume " + v.CloneID
	}

	health := ""
	for _, f := range v.Health {
		health = joined("; ", health, finding(f))
	}

	row := []string{dash(v.ExternalID), dash(v.Volume), sizeOrDash(v.Capacity), dash(source), dash(joined(",", v.PublishedNodes...)), dash(health)}
	if wide {
		row = append(row, dash(places(v.Topologies)), dash(topology(v.Context)))
	}

	return row
}

