package cluster

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

func newStatus(g *group) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the hosts of the cluster and the state of its etcd",
		Long: `Show the hosts of the cluster, the state of its etcd, and its problems. The command also works
while a majority of the members does not answer.`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.app.Read(cmd, func(ctx context.Context, _ *apiclient.Client, out *output.Printer) error {
				st, err := call[wire.ClusterStatus](ctx, g.app, g.request(wire.Request{Command: wire.Status}))
				if err != nil {
					return command.Failed(err, "show the cluster")
				}
				var names []string
				for _, h := range st.Hosts {
					names = append(names, h.Name)
				}
				return out.Print(st, names, func(w *bytes.Buffer) error { return screen(w, out, st) })
			})
		},
	}
}

func screen(w *bytes.Buffer, out *output.Printer, st wire.ClusterStatus) error {
	quorum := "no majority of the voters answers"
	if st.Quorum {
		quorum = fmt.Sprintf("tolerates the failure of %s", output.Count(st.Tolerates, "more voter"))
	}
	fmt.Fprintf(w, "cluster %s: %s\n", st.ClusterID, quorum)
	if st.Quorum {
		fmt.Fprintf(w, "epoch %d, schema %d\n", st.Epoch, st.Schema)
	}
	w.WriteString("\n")

	var rows [][]string
	for _, h := range st.Hosts {
		rows = append(rows, []string{h.Name, string(h.Role), vote(h), state(h), h.Version, size(h), end(h)})
	}
	if err := out.Table(w, "", []string{"host", "role", "vote", "state", "etcd", "data", "certificate"}, rows); err != nil {
		return err
	}

	for _, p := range st.Problems {
		w.WriteString("\n! " + output.OneLine(p.Text) + "\n")
		if p.Fix != "" {
			w.WriteString("  fix: " + output.OneLine(p.Fix) + "\n")
		}
	}
	return nil
}

func vote(h wire.HostStatus) string {
	switch {
	case h.Role == wire.RoleClient:
		return "-"
	case h.Leader:
		return "leader"
	case h.Voter:
		return "voter"
	default:
		return "learner"
	}
}

func state(h wire.HostStatus) string {
	switch {
	case h.Role == wire.RoleClient:
		return "-"
	case h.Error != "":
		return h.Error
	case len(h.Alarms) > 0:
		return strings.Join(h.Alarms, ", ")
	case h.Healthy:
		return "healthy"
	default:
		return "behind its leader"
	}
}

func size(h wire.HostStatus) string {
	if h.Quota == 0 {
		return "-"
	}
	return output.Size(h.InUse) + " of " + output.Size(h.Quota)
}

func end(h wire.HostStatus) string {
	if h.CertEnd.IsZero() {
		return "-"
	}
	return "until " + h.CertEnd.UTC().Format("2006-01-02")
}
