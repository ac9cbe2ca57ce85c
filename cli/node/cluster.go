package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// newList returns the command "volctl node list".
func newList(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the hosts of the cluster",
		Long: `List the hosts of the cluster. A host is ready, draining, away or gone. A host whose
agent was stopped cleanly is away for five minutes. A host is gone when its lease has ended. The cluster does not
record when a lease ends: "seen" is the last time that the host has written into the cluster.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Read(cmd, runList) },
	}
}

func runList(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	hosts, err := client.Hosts(ctx)
	if err != nil {
		return command.Failed(err, "list the hosts")
	}

	ids, rows := make([]string, len(hosts)), make([][]string, len(hosts))
	for i, h := range hosts {
		ids[i] = h.ID
		rows[i] = []string{h.ID, hostState(h, out.Now()), output.Since(out.Now(), h.Since), seen(h, out.Now()), output.Dash(h.Version), output.Dash(pluginIDs(h)), strconv.Itoa(h.HoldCount)}
	}
	return out.Print(hosts, ids, func(w *bytes.Buffer) error {
		return out.Table(w, "", []string{"Host", "State", "Since", "Seen", "Version", "Plugins", "Holds"}, rows)
	})
}

// hostState returns the state of a host. An away host is expected back until a time.
func hostState(h api.ClusterHost, now time.Time) string {
	if h.State != api.HostAway || h.Until.IsZero() {
		return h.State
	}
	return fmt.Sprintf("%s for %s more", h.State, output.Since(h.Until, now))
}

// seen returns when a host was last seen.
func seen(h api.ClusterHost, now time.Time) string {
	if h.Alive {
		return "now"
	}
	return output.Since(now, h.Seen) + " ago"
}

func pluginIDs(h api.ClusterHost) string {
	ids := make([]string, len(h.Plugins))
	for i, p := range h.Plugins {
		ids[i] = p.ID
	}
	return strings.Join(ids, ", ")
}

type statusOptions struct{ host string }

// run shows a host of the cluster. For the host itself, it shows the summary of the host.
func (o statusOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	n, err := client.Node(ctx)
	if err != nil {
		return command.Failed(err, "show host %q", o.host)
	}
	if n.ID == o.host {
		return runStatus(ctx, client, out)
	}

	h, err := client.Host(ctx, o.host)
	if err != nil {
		return command.Failed(err, "show host %q", o.host)
	}
	return out.Print(h, []string{h.ID}, func(w *bytes.Buffer) error { return hostScreen(w, out, h) })
}

func hostScreen(w *bytes.Buffer, out *output.Printer, h *api.ClusterHost) error {
	is := output.Bad
	switch h.State {
	case api.HostReady:
		is = output.Good
	case api.HostDraining, api.HostAway:
		is = output.Changing
	}

	state := h.ID + "  " + hostState(*h, out.Now())
	if h.State != api.HostGone { // the cluster does not record the end of a lease
		state += " since " + output.Since(out.Now(), h.Since)
	}
	facts := []string{state, "seen " + seen(*h, out.Now()), fmt.Sprintf("incarnation %d", h.Incarnation)}
	if h.Version != "" {
		facts = append(facts, "agent "+h.Version)
	}
	out.Headline(w, "", out.Mark(is), facts...)

	var lines []output.Field
	for _, p := range h.Plugins {
		lines = append(lines, output.Named("Plugin", p.ID, output.Joined(" ", p.Driver, p.Version), p.NodeID))
	}
	if h.Proof != nil {
		lines = append(lines, output.Named("Fenced", proofWords(*h.Proof, out)))
		for _, d := range h.Proof.Drops {
			lines = append(lines, output.Named("Taken over", d.Volume, d.Kind, output.Since(out.Now(), d.At)+" ago", "by host "+d.By))
		}
		for _, hook := range h.Proof.Hooks {
			lines = append(lines, output.Named("Asked", "hook "+hook.Name, output.Since(out.Now(), hook.At)+" ago", "on host "+hook.By, hook.Outcome))
		}
	}
	if len(h.Quarantined) > 0 {
		lines = append(lines, output.Named("Quarantined", strings.Join(h.Quarantined, ", "), "lost, and still mounted there"))
	}
	for _, c := range h.Calls {
		lines = append(lines, output.Named("Call", c.Call+" for volume "+c.Volume, "since "+output.Since(out.Now(), c.Since)))
	}
	// A host that is fenced by the detach of single volumes may still run.
	unproven := h.State == api.HostFenced && h.Proof != nil && h.Proof.Kind == "detach"
	if h.State == api.HostGone || unproven {
		lines = append(lines, output.Named("If it is switched off", "→ volctl node fence "+h.ID+" --powered-off --reason TEXT"))
	}
	if h.State == api.HostGone || h.State == api.HostFencing || h.State == api.HostFenced {
		lines = append(lines, output.Named("If its machine is gone", "→ volctl node replace "+h.ID+" --reason TEXT -y"))
	}
	if err := out.Fields(w, "  ", lines); err != nil || len(h.Holds) == 0 {
		return err
	}

	rows := make([][]string, len(h.Holds))
	for i, held := range h.Holds {
		rows[i] = []string{held.Volume, held.AccessMode, output.Dash(held.Attachment), output.Since(out.Now(), held.Since), claims(held), output.Dash(held.State)}
	}
	return out.Table(w, "  ", []string{"Volume", "Mode", "Attachment", "Since", "Claims", "State"}, rows)
}

// claims returns the number of claims under a hold, if the host has written it.
func claims(h api.Hold) string {
	if h.Claims == nil {
		return "-"
	}
	return strconv.Itoa(*h.Claims)
}

// clusterLines returns the lines about the cluster in the summary of a host.
func clusterLines(c *api.NodeCluster, now time.Time) []output.Field {
	if c == nil {
		return nil
	}

	state := "reachable"
	if !c.Reachable {
		state = "not usable since " + output.Since(now, c.Since) + ": " + c.Reason
	}
	lines := []output.Field{output.Named("Cluster", state, "etcd "+c.Endpoints, fmt.Sprintf("incarnation %d", c.Incarnation), output.Count(c.Holds, "hold"))}
	for _, p := range c.Pending {
		lines = append(lines, output.Named("Pending", p))
	}
	return lines
}

type replaceOptions struct {
	host, reason string
	yes          bool
}

// newReplace returns the command "volctl node replace".
func newReplace(a *command.App) *cobra.Command {
	var o replaceOptions
	cmd := &cobra.Command{
		Use: "replace HOST", Short: "Release the volumes of a host whose machine is gone",
		Long: `State that the machine behind the name of a host is gone for ever, or that another machine gets its
name. The cluster then drops the holds of the host, and other hosts may use its volumes. It records
who has said so, when and why.

The statement must be true. If the old machine still runs, it may write to its volumes together
with another host, and destroy the data. Switch it off first. The command is refused while the
agent of the host is alive. After the command, a new machine can register with the name. If the
command stops in the middle, run it again on any host.`,
		Example: `  volctl node replace db2 --reason "mainboard died, machine is in the workshop" -y`,
		Args:    command.Exactly("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.host = args[0]
			if strings.TrimSpace(o.reason) == "" {
				return command.Usage("--reason TEXT", "the replacement of a host needs a reason")
			}
			if !o.yes {
				return command.Usage(suggest.Command("volctl node replace %s --reason TEXT -y", o.host), "this drops all holds of host %q; repeat the command with -y if its machine is switched off", o.host)
			}
			return a.Do(cmd, o.run)
		},
	}

	cmd.Flags().StringVar(&o.reason, "reason", "", "why the machine is gone; `TEXT` is recorded in the cluster")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "the machine is switched off or gone")
	return cmd
}

func (o replaceOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	r, err := client.ReplaceHost(ctx, o.host, o.reason)
	if err != nil {
		return command.Failed(err, "replace host %q", o.host)
	}

	return out.Print(r, r.Dropped, func(w *bytes.Buffer) error {
		fmt.Fprintf(w, "host %s can be replaced; dropped holds: %s\n", r.Host, cmp.Or(strings.Join(r.Dropped, ", "), "none"))
		return nil
	})
}
