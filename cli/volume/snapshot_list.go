package volume

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type snapshotListOptions struct {
	plugin, volume string
	secrets        []string
}

func newSnapshotList(a *command.App) *cobra.Command {
	var o snapshotListOptions
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the snapshots that plugins have",
		Long: `List the snapshots that plugins report, and those that were begun and that the agent has not seen
finished. A snapshot is ready, creating or unknown. Unknown means that it was begun, and that the
plugin has never reported it. With -o wide, the list has names while the agent knows them. Plugins
do not report names.`,
		Example: `  volctl volume snapshot list --volume data`,
		Args:    command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.Read(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.plugin, "plugin", "", "ask only this `PLUGIN` (default all plugins that can list snapshots)")
	f.StringVar(&o.volume, "volume", "", "show only snapshots of volume `ID`")
	f.StringArrayVar(&o.secrets, "secret", nil, command.SecretUsage)
	command.CompleteFlag(a, cmd, "plugin", command.PluginIDs)
	command.CompleteFlag(a, cmd, "volume", command.VolumeIDs)

	return cmd
}

func (o *snapshotListOptions) check() error {
	if o.plugin != "" {
		if err := command.CheckPluginID(o.plugin); err != nil {
			return err
		}
	}

	if o.volume != "" {
		return command.CheckVolumeID(o.volume)
	}

	return nil
}

func (o snapshotListOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	secrets, err := command.SecretRefs(o.secrets)
	if err != nil {
		return err
	}

	all, err := client.Snapshots(ctx, apiclient.SnapshotFilter{Plugin: o.plugin, Volume: o.volume, Secrets: secrets})
	if err != nil {
		if err = command.ExplainPlugin(ctx, client, err, o.plugin); o.volume != "" {
			err = command.Explain(ctx, client, err, o.volume)
		}
		return command.Failed(err, "list snapshots")
	}

	for _, note := range all.Notes {
		out.Note("%s", note)
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

	return out.Print(all, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Volume", "Plugin", "State", "Size", "Age"}
		if out.Wide() {
			header = append(header, "Name", "Group", "Source")
		}
		return out.Table(w, "", header, rows)
	})
}

func snapshotRow(s *api.Snapshot, out *output.Printer) []string {
	id, state := s.ID, s.State
	if id == "" {
		// If a snapshot has no id, it can be deleted only by name.
		id = fmt.Sprintf("(named %s)", s.Name)
	}

	if s.Message != "" {
		state += ": " + s.Message
	}

	row := []string{id, output.Dash(s.Volume), s.PluginID, state, output.SizeOrDash(s.Size), output.Since(out.Now(), s.CreatedAt)}
	if out.Wide() {
		row = append(row, output.Dash(s.Name), output.Dash(s.GroupID), output.Dash(s.SourceID))
	}

	return row
}

// printMade prints a new snapshot or group of snapshots.
func printMade(out *output.Printer, value any, what, id, state string, bytesOf int64) error {
	var ids []string
	if id != "" {
		ids = []string{id}
	}

	return out.Print(value, ids, func(w *bytes.Buffer) error {
		if bytesOf > 0 {
			what += " (" + output.Size(bytesOf) + ")"
		}
		fmt.Fprintf(w, "%s\n", output.OneLine(fmt.Sprintf("%s is %s: %s", what, state, cmp.Or(id, "not known yet"))))
		return nil
	})
}

// showGroup prints a group of snapshots and each snapshot in it.
func showGroup(out *output.Printer, g *api.GroupSnapshot) error {
	var members []string
	rows := [][]string{}
	for _, s := range g.Snapshots {
		members = append(members, s.ID)
		rows = append(rows, []string{s.ID, output.Dash(s.Volume), s.State, output.SizeOrDash(s.Size), output.Since(out.Now(), s.CreatedAt), s.SourceID})
	}

	return out.Print(g, members, func(w *bytes.Buffer) error {
		id := cmp.Or(g.ID, "not known yet")
		fmt.Fprintf(w, "%s\n", output.OneLine(fmt.Sprintf("group snapshot of plugin %s is %s: %s", g.PluginID, g.State, id)))
		if len(rows) == 0 {
			return nil
		}

		return out.Table(w, "  ", []string{"ID", "Volume", "State", "Size", "Age", "Source"}, rows)
	})
}
