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
	adopt adoption
}

func newVolumes(a *command.App) *cobra.Command {
	var (
		o   volumesOptions
		yes bool
	)
	cmd := &cobra.Command{
		Use: "volumes ID", Short: "List all volumes that a plugin's storage has",
		Long: `Ask a plugin for all volumes that its storage has, registered on this host or not. The list
includes volumes of other hosts, and volumes that a create without a known result may have left.
The command asks page by page, until the last page or Ctrl-C. Some plugins cannot answer. To list
the volumes of this host, use volctl volume list.

With --unregistered, the list has only the volumes that are registered neither on this host nor as a
shared volume of its cluster. The column Nodes has the node ids of the hosts to which the storage has
connected a volume.

With --register or --all, the command registers such volumes, for example after the loss of the state
database, or on a new host. It first shows their new ids, and warns of each volume that is connected to
another host. Then it asks for confirmation. Without a terminal it needs -y. The new id is the external
id, or is derived from it. The volumes have reclaim: retain, so their removal from docker keeps the
data. The command continues after a failure, and reports each result.`,
		Example: `  volctl plugin volumes ebs --unregistered
  volctl plugin volumes ebs --register vol-0abc --access-mode single-node-writer
  volctl plugin volumes ebs --all -y`,
		Args: command.Exactly("ID"), ValidArgsFunction: command.CompleteArg(a, command.PluginIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.id = args[0]
			if o.limit < 0 {
				return command.Usage("", "--limit %d is not a count", o.limit)
			}
			if err := o.adopt.read(cmd, a.Asker(yes), yes); err != nil {
				return err
			}
			if o.adopt.wanted() {
				return a.Do(cmd, o.register)
			}
			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.limit, "limit", 1000, "ask for at most `N` volumes; 0 asks for all")
	f.BoolVar(&o.other, "unregistered", false, "show only volumes that are registered neither here nor in the cluster")
	o.adopt.addFlags(cmd)
	f.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")

	return cmd
}

func (o volumesOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	p, err := command.FindPlugin(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "list the volumes of plugin %q", o.id)
	}

	isKnown := func(string) bool { return false }
	if o.other {
		known, err := knownVolumes(ctx, client, out)
		if err != nil {
			return command.Failed(err, "list the volumes of plugin %q", p.ID)
		}
		isKnown = func(external string) bool { return known.has(p, external) }
	}

	volumes, ids, rows := []api.StorageVolume{}, []string{}, [][]string{}
	more, err := client.PluginVolumes(ctx, p.ID, o.limit, func(v api.StorageVolume) error {
		unregistered := v.Volume == "" && !isKnown(v.ExternalID)
		if unregistered || !o.other {
			volumes, ids, rows = append(volumes, v), append(ids, v.ExternalID), append(rows, storageRow(&v, out.Wide()))
		}
		return nil
	})

	if err != nil {
		return listError(ctx, client, err, p)
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
