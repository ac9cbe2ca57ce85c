// Package plugin contains the commands of volctl for plugins, with a file for each command.
package plugin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// New returns the command group "volctl plugin".
func New(a *command.App) *cobra.Command {
	return command.Group("plugin", "Show, register, restart, stop, start and test plugins", "",
		newList(a), newStatus(a),
		command.Inspect(newStatus(a), a, "Show a plugin as JSON (short for plugin status ID -o json)"), newLogs(a),
		newVolumes(a), newCapacity(a), newHealth(a),
		newRestart(a), newStop(a), newStart(a),
		newInit(a), newImport(a), newEnable(a), newDisable(a), newRegister(a), newDeregister(a), newTest(a),
	)
}

func newList(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the plugins", Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Read(cmd, runList) },
	}
}

func runList(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	plugins, err := sortedPlugins(ctx, client)
	if err != nil {
		return command.Failed(err, "list plugins")
	}

	ids, rows := make([]string, len(plugins)), make([][]string, len(plugins))
	for i, p := range plugins {
		ids[i] = p.ID
		rows[i] = []string{
			p.ID, output.Dash(p.Provider), output.Dash(p.Version), output.Dash(p.Type), output.PluginState(&p), outOf(p.ControllersHealthy, p.ControllersExpected),
			outOf(p.NodesHealthy, p.NodesExpected), strconv.Itoa(p.Restarts), strconv.Itoa(len(p.Volumes)), output.Staged(&p),
		}
		if out.Wide() {
			rows[i] = append(rows[i], p.Runner, pids(&p), output.Since(out.Now(), p.Since), output.Dash(p.NodeID), output.Dash(output.Topology(p.Topology)), output.Dash(p.Socket))
		}
	}

	return out.Print(plugins, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Provider", "Version", "Type", "State", "Controllers", "Nodes", "Restarts", "Volumes", "Used/Max"}
		if out.Wide() {
			header = append(header, "Runner", "PID", "Since", "Node ID", "Topology", "Socket")
		}
		return out.Table(w, "", header, rows)
	})
}

func sortedPlugins(ctx context.Context, client *apiclient.Client) ([]api.Plugin, error) {
	plugins, err := client.Plugins(ctx)
	slices.SortStableFunc(plugins, func(x, y api.Plugin) int { return strings.Compare(x.ID, y.ID) })
	return plugins, err
}

// outOf returns the numbers of healthy and expected parts, in the form "1/2". It returns "-" if no
// part is expected.
func outOf(have, want int) string {
	if want == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", have, want)
}

// pids returns the process ids of all parts of a plugin.
func pids(p *api.Plugin) string {
	var all []string
	for _, part := range p.Parts {
		if part.PID != 0 {
			all = append(all, strconv.Itoa(part.PID))
		}
	}

	if len(all) == 0 && p.PID != 0 {
		all = append(all, strconv.Itoa(p.PID))
	}

	return output.Dash(strings.Join(all, ","))
}
