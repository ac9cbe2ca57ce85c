package volume

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

// NewList returns the command "volctl volume list".
func NewList(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the volumes",
		Long: `List the volumes. A volume is free, mounting, mounted, degraded, detaching or stuck. With -o wide,
the list adds whether the volume is attached and staged, the states of its claims, and its
external id.

On a host of a cluster, the list contains all shared volumes. SCOPE is host or shared, and HOST is
the host that holds a shared volume. Held means that only other hosts use it. If the cluster is not
reachable, the list contains the volumes that this host knows.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Read(cmd, runList) },
	}
}

func runList(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	volumes, warnings, err := client.AllVolumes(ctx)
	if err != nil {
		return command.Failed(err, "list volumes")
	}
	out.Warn(warnings)

	slices.SortStableFunc(volumes, func(x, y api.Volume) int { return strings.Compare(x.Spec.ID, y.Spec.ID) })
	member := clustered(volumes)
	ids := make([]string, len(volumes))
	rows := make([][]string, len(volumes))
	for i, v := range volumes {
		ids[i], rows[i] = v.Spec.ID, listRow(&v, out.Wide())
		if member {
			rows[i] = append(rows[i], v.Scope, holders(&v))
		}
	}

	return out.Print(volumes, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Name", "Plugin", "State", "Access Mode", "Claims", "Capacity"}
		if out.Wide() {
			header = append(header, "Attached", "Staged", "Claim States", "External ID")
		}
		if member {
			header = append(header, "Scope", "Host")
		}
		return out.Table(w, "", header, rows)
	})
}

func listRow(v *api.Volume, wide bool) []string {
	mode := ""
	if v.Mode != nil {
		mode = v.Mode.AccessMode
	}

	row := []string{v.Spec.ID, output.Dash(v.Spec.Name), v.Spec.PluginID, v.State, output.Dash(mode), strconv.Itoa(len(v.Claims)), output.SizeOrDash(v.Capacity)}
	if wide {
		row = append(row, output.Dash(v.Attached), output.Dash(v.Staged), output.Dash(claimStates(v.Claims)), output.Dash(v.Spec.ExternalID))
	}

	return row
}

// claimStates returns a text with the number of claims in each state. The states are in the order
// in which a claim passes through them.
func claimStates(claims []api.Claim) string {
	counts := map[string]int{}
	for _, c := range claims {
		counts[c.State]++
	}

	var parts []string
	order := []string{
		api.ClaimPending, api.ClaimMounted, api.ClaimUnpublishing,
		api.ClaimNodeDetached, api.ClaimControllerDetached, api.ClaimReadyToFree,
	}

	for _, state := range order {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
			delete(counts, state)
		}
	}

	for _, c := range claims { // a newer agent may return states that volctl does not know
		if counts[c.State] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[c.State], c.State))
			delete(counts, c.State)
		}
	}

	return strings.Join(parts, ", ")
}
