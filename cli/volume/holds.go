package volume

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/output"
)

// clustered reports whether the host belongs to a cluster.
func clustered(volumes []api.Volume) bool {
	return slices.ContainsFunc(volumes, func(v api.Volume) bool { return v.Scope != "" })
}

// holders names the host that holds a volume, or the number of hosts.
func holders(v *api.Volume) string {
	switch len(v.Holds) {
	case 0:
		return "-"
	case 1:
		return v.Holds[0].Host
	default:
		return fmt.Sprintf("%d hosts", len(v.Holds))
	}
}

// clusterLines returns the lines about the cluster in the status of a volume.
func clusterLines(v *api.Volume, out *output.Printer) []output.Field {
	if v.Scope != api.ScopeShared {
		return nil
	}

	scope := []string{v.Scope}
	if len(v.Holds) == 0 {
		scope = append(scope, "no host holds it")
	}
	if v.Spec.Takeover == api.TakeoverNever {
		scope = append(scope, "takeover: "+v.Spec.Takeover)
	}

	lines := []output.Field{output.Named("Scope", scope...)}
	if c := v.ClusterCall; c != nil {
		lines = append(lines, output.Named("Call", fmt.Sprintf("host %s is calling %s", c.Executor, c.Call), "since "+output.Since(out.Now(), c.Since)))
	}
	if t := v.TakenOver; t != nil {
		lines = append(lines, output.Named("Taken over", "from host "+t.From, "proof: "+t.Kind, output.Since(out.Now(), t.At)+" ago", "by host "+t.By))
	}
	if m := v.Move; m != nil {
		lines = append(lines, output.Named("Move", m.Summary, "since "+output.Since(out.Now(), m.Since)))
	}
	return lines
}

// holdTable writes a table of the hosts that hold a volume.
func holdTable(w *bytes.Buffer, out *output.Printer, holds []api.Hold) error {
	if len(holds) == 0 {
		return nil
	}

	rows := make([][]string, len(holds))
	for i, h := range holds {
		mode := h.AccessMode
		if h.Reader {
			mode += ", reader"
		}
		claims := "-"
		if h.Claims != nil {
			claims = strconv.Itoa(*h.Claims)
		}
		rows[i] = []string{h.Host, output.Dash(h.HostState), mode, output.Dash(h.Attachment), output.Since(out.Now(), h.Since), claims}
	}
	return out.Table(w, "  ", []string{"Host", "Host State", "Mode", "Attachment", "Since", "Claims"}, rows)
}
