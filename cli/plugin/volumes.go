package plugin

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type volumesOptions struct {
	id    string
	limit int
	other bool
}

func newVolumes(a *command.App) *cobra.Command {
	var o volumesOptions
	cmd := &cobra.Command{
		Use: "volumes ID", Short: "List all volumes that a plugin's storage has",
		Long: `Ask a plugin for all volumes that its storage has, registered on this host or not. The list
includes volumes of other hosts, and volumes that a create without a known result may have left.
The command asks page by page, until the last page or Ctrl-C. Some plugins cannot answer. To list
the volumes of this host, use volctl volume list.`,
		Example: "  volctl plugin volumes ebs --unregistered",
		Args:    command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if o.limit < 0 {
				return command.Usage("", "--limit %d is not a count", o.limit)
			}
			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.limit, "limit", 1000, "ask for at most `N` volumes; 0 asks for all")
	f.BoolVar(&o.other, "unregistered", false, "show only volumes that are not registered on this host")

	return cmd
}

func (o volumesOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	p, err := command.FindPlugin(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "list the volumes of plugin %q", o.id)
	}

	volumes, ids, rows := []api.StorageVolume{}, []string{}, [][]string{}
	more, err := client.PluginVolumes(ctx, p.ID, o.limit, func(v api.StorageVolume) error {
		if v.Volume == "" || !o.other {
			volumes, ids, rows = append(volumes, v), append(ids, v.ExternalID), append(rows, storageRow(&v, out.Wide()))
		}
		return nil
	})

	if err != nil {
		return command.Failed(command.ExplainPlugin(ctx, client, err, p.ID), "list the volumes of plugin %q", p.ID)
	}

	err = out.Print(volumes, ids, func(w *bytes.Buffer) error {
		header := []string{"External ID", "Volume", "Capacity", "Source", "Nodes", "Health"}
		if out.Wide() {
			header = append(header, "Topology", "Context")
		}
		return out.Table(w, "", header, rows)
	})

	if more {
		out.Note("there are more; --limit 0 asks for all")
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
		health = output.Joined("; ", health, output.Finding(f))
	}

	row := []string{output.Dash(v.ExternalID), output.Dash(v.Volume), output.SizeOrDash(v.Capacity), output.Dash(source), output.Dash(output.Joined(",", v.PublishedNodes...)), output.Dash(health)}
	if wide {
		row = append(row, output.Dash(output.Places(v.Topologies)), output.Dash(output.Topology(v.Context)))
	}

	return row
}
