package cli

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
)

func newPlugin(a *app) *cobra.Command {
	return group("plugin", "Show, register, restart, stop, start and test plugins", "",
		newPluginList(a), newPluginStatus(a),
		newInspect(newPluginStatus(a), a, "Show a plugin as JSON (short for plugin status ID -o json)"), newPluginLogs(a),
		newPluginVolumes(a), newPluginCapacity(a), newPluginHealth(a),
		newPluginRestart(a), newPluginStop(a), newPluginStart(a),
		newPluginRegister(a), newPluginDeregister(a), newPluginInit(a), newPluginTest(a),
	)
}

func newPluginList(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the plugins", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.read(cmd, runPluginList) },
	}
}

func runPluginList(ctx context.Context, client *apiclient.Client, out *output) error {
	plugins, err := sortedPlugins(ctx, client)
	if err != nil {
		return failed(err, "list plugins")
	}

	ids, rows := make([]string, len(plugins)), make([][]string, len(plugins))
	for i, p := range plugins {
		ids[i] = p.ID
		rows[i] = []string{
			p.ID, dash(p.Provider), dash(p.Version), dash(p.Type), pluginState(&p), outOf(p.ControllersHealthy, p.ControllersExpected),
			outOf(p.NodesHealthy, p.NodesExpected), strconv.Itoa(p.Restarts), strconv.Itoa(len(p.Volumes)), staged(&p),
		}
		if out.wide() {
			rows[i] = append(rows[i], p.Runner, pids(&p), since(out.now(), p.Since), dash(p.NodeID), dash(topology(p.Topology)), dash(p.Socket))
		}
	}

	return out.print(plugins, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Provider", "Version", "Type", "State", "Controllers", "Nodes", "Restarts", "Volumes", "Used/Max"}
		if out.wide() {
			header = append(header, "Runner", "PID", "Since", "Node ID", "Topology", "Socket")
		}
		return table(w, "", header, rows)
	})
}

func sortedPlugins(ctx context.Context, client *apiclient.Client) ([]api.Plugin, error) {
	plugins, err := client.Plugins(ctx)
	slices.SortStableFunc(plugins, func(x, y api.Plugin) int { return strings.Compare(x.ID, y.ID) })
	return plugins, err
}

// outOf shows how many parts are healthy, and how many there should be.
func outOf(have, want int) string {
	if want == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", have, want)
}

// pids returns the process ids of all parts.
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

	return dash(strings.Join(all, ","))
}
