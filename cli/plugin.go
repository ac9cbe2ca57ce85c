package cli

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

func newPlugin(a *app) *cobra.Command {
	return group("plugin", "See the plugins, and restart, stop and start them", "",
		newPluginList(a), newPluginStatus(a),
		newInspect(newPluginStatus(a), a, "Short for plugin status ID -o json"), newPluginLogs(a),
		newPluginRestart(a), newPluginStop(a), newPluginStart(a),
	)
}

func newPluginList(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the plugins", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.read(cmd, runPluginList) },
	}
}

func runPluginList(ctx context.Context, client *apiclient.Client, out *output) error {
	plugins, err := client.Plugins(ctx)
	if err != nil {
		return failed(err, "list plugins")
	}
	slices.SortStableFunc(plugins, func(x, y api.Plugin) int { return strings.Compare(x.ID, y.ID) })
	ids, rows := make([]string, len(plugins)), make([][]string, len(plugins))
	for i, p := range plugins {
		ids[i] = p.ID
		rows[i] = []string{p.ID, dash(p.Provider), dash(p.Version), dash(p.Type), pluginState(&p), strconv.Itoa(p.Restarts), strconv.Itoa(len(p.Volumes)), staged(&p)}
		if out.wide() {
			rows[i] = append(rows[i], p.Runner, pid(&p), since(out.now(), p.Since), dash(p.NodeID), dash(p.Socket))
		}
	}
	return out.print(plugins, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Driver", "Version", "Type", "State", "Restarts", "Volumes", "Staged"}
		if out.wide() {
			header = append(header, "Runner", "PID", "Since", "Node ID", "Socket")
		}
		return table(w, "", header, rows)
	})
}

// pluginState adds that a changed file waits.
func pluginState(p *api.Plugin) string {
	if p.Pending != "" {
		return p.State + ", change pending"
	}
	return p.State
}

// staged is how many volumes are here now, of how many may be.
func staged(p *api.Plugin) string {
	if p.MaxVolumes > 0 {
		return strconv.Itoa(p.Staged) + "/" + strconv.FormatInt(p.MaxVolumes, 10)
	}
	return strconv.Itoa(p.Staged)
}

func pid(p *api.Plugin) string {
	if p.PID == 0 {
		return "-"
	}
	return strconv.Itoa(p.PID)
}
