package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

type snapshotListOptions struct {
	plugin, volume string
	secrets        []string
}

func newSnapshotList(a *app) *cobra.Command {
	var o snapshotListOptions
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the snapshots that plugins have",
		Long: `List the snapshots that plugins report, and those that were begun and that the agent has not seen
finished. A snapshot is ready, creating or unknown. Unknown means that it was begun, and that the
plugin has never reported it. With -o wide, the list has names while the agent knows them. Plugins
do not report names.`,
		Example: `  volctl volume snapshot list --volume data`,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.read(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runSnapshotList(ctx, o, client, out)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.plugin, "plugin", "", "ask only this `PLUGIN` (default all plugins that can list snapshots)")
	f.StringVar(&o.volume, "volume", "", "show only snapshots of volume `ID`")
	f.StringArrayVar(&o.secrets, "secret", nil, secretUsage)
	completeFlag(a, cmd, "plugin", pluginIDs)
	completeFlag(a, cmd, "volume", volumeIDs)

	return cmd
}

func (o *snapshotListOptions) check() error {
	if o.plugin != "" {
		if err := checkPluginID(o.plugin); err != nil {
			return err
		}
	}

	if o.volume != "" {
		return checkVolumeID(o.volume)
	}

	return nil
}

func runSnapshotList(ctx context.Context, o snapshotListOptions, client *apiclient.Client, out *output) error {
	secrets, err := secretRefs(o.secrets)
	if err != nil {
		return err
	}

	all, err := client.Snapshots(ctx, apiclient.SnapshotFilter{Plugin: o.plugin, Volume: o.volume, Secrets: secrets})
	if err != nil {
		if err = explainPlugin(ctx, client, err, o.plugin); o.volume != "" {
			err = explain(ctx, client, err, o.volume)
		}
		return failed(err, "list snapshots")
	}

	for _, note := range all.Notes {
		out.note("%s", note)
	}

	ids := []string{}
	rows := [][]string{}
	for _, s := range all.Snapshots {
		if s.ID != "" {
			ids = append(ids, s.ID)
		}
		rows = append(rows, snapshotRow(&s, out))
	}

	for _, g := range all.Groups {
		one := api.Snapshot{ID: g.ID, Name: g.Name, PluginID: g.PluginID, Volume: strings.Join(g.Volumes, ", "), State: g.State, GroupID: g.ID, CreatedAt: g.CreatedAt, Message: g.Message}
		rows = append(rows, snapshotRow(&one, out))
	}

	return out.print(all, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Volume", "Plugin", "State", "Size", "Age"}
		if out.wide() {
			header = append(header, "Name", "Group", "Source")
		}
		return table(w, "", header, rows)
	})
}

func snapshotRow(s *api.Snapshot, out *output) []string {
	id, state := s.ID, s.State
	if id == "" {
		id = fmt.Sprintf("(named %s)", s.Name) // without an id, it cannot be deleted by id
	}

	if s.Message != "" {
		state += ": " + s.Message
	}

	row := []string{id, dash(s.Volume), s.PluginID, state, sizeOrDash(s.Size), since(out.now(), s.CreatedAt)}
	if out.wide() {
		row = append(row, dash(s.Name), dash(s.GroupID), dash(s.SourceID))
	}

	return row
}

// printMade prints a new snapshot or group.
func printMade(out *output, value any, what, id, state string, bytesOf int64) error {
	var ids []string
	if id != "" {
		ids = []string{id}
	}

	return out.print(value, ids, func(w *bytes.Buffer) error {
		if bytesOf > 0 {
			what += " (" + size(bytesOf) + ")"
		}
		if id == "" {
			id = "not known yet"
		}
		fmt.Fprintf(w, "%s\n", oneLine(fmt.Sprintf("%s is %s: %s", what, state, id)))
		return nil
	})
}

// showGroup shows a group with its snapshots.
func showGroup(out *output, g *api.GroupSnapshot) error {
	var members []string
	rows := [][]string{}
	for _, s := range g.Snapshots {
		members = append(members, s.ID)
		rows = append(rows, []string{s.ID, dash(s.Volume), s.State, sizeOrDash(s.Size), since(out.now(), s.CreatedAt), s.SourceID})
	}

	return out.print(g, members, func(w *bytes.Buffer) error {
		id := g.ID
		if id == "" {
			id = "not known yet"
		}

		fmt.Fprintf(w, "%s\n", oneLine(fmt.Sprintf("group snapshot of plugin %s is %s: %s", g.PluginID, g.State, id)))
		if len(rows) == 0 {
			return nil
		}

		return table(w, "  ", []string{"ID", "VOLUME", "STATE", "SIZE", "AGE", "SOURCE"}, rows)
	})
}
