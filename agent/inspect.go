package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// newInspect returns `volagent inspect`. It compares the records with the host, without an agent.
func newInspect() *cobra.Command {
	var asJSON, inUse bool
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Compare recorded state with actual mounts (works without the agent)",
		Long: "Read a copy of the state database and the mount table, and compare them. The command prints\n" +
			"volumes, claims, mounts, pending calls, leftovers, plugins, and changes without a known result. It\n" +
			"also prints the volume names of docker and podman, and mounts that no record explains. It changes\n" +
			"nothing, and contacts neither an agent nor a plugin. It exits 1 if the host differs from the\n" +
			"records, or if it cannot read the database. Without the database, it still prints the mounts.\n\n" +
			"With --in-use, the command prints instead everything that prevents the removal of volagent from\n" +
			"this host. Each line is one obstacle with the command that ends it. The exit code is 1 if there is\n" +
			"any.",
		Args: usageArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flags())
			if err != nil {
				// Inspect is for a host whose agent does not start, and this mistake may be the
				// reason.
				cmd.PrintErrf("volagent: warning: %v; inspecting data dir %s all the same\n", err, c.DataDir)
			}

			if !filepath.IsAbs(c.DataDir) {
				return err
			}

			in, err := inspect(cmd.Context(), c)
			if err != nil {
				return err
			}
			if inUse {
				return in.inUse(cmd.OutOrStdout())
			}

			show := in.text
			if asJSON {
				show = in.json
			}
			if err := show(cmd.OutOrStdout()); err != nil {
				return err
			}
			if len(in.Findings) > 0 {
				return fmt.Errorf("%d findings", len(in.Findings))
			}

			return nil
		},
	}

	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&inUse, "in-use", false, "print claimed, mounted and attached volumes, and pending calls")
	cmd.MarkFlagsMutuallyExclusive("json", "in-use")
	return cmd
}

// inspection is the result of inspect.
type inspection struct {
	DataDir string `json:"data_dir"`
	DB      string `json:"db"` // "ok", or the problem with it

	// AgentRunning warns that the records may be older than the mounts.
	AgentRunning bool              `json:"agent_running"`
	Draining     bool              `json:"draining,omitempty"` // new claims are refused
	NodeID       string            `json:"node_id,omitempty"`
	Volumes      []inspectedVolume `json:"volumes"`
	Leftovers    []inspectedVolume `json:"leftovers"` // the leftovers of forced deregisters
	Unexplained  []inspectedMount  `json:"unexplained_mounts"`

	// Elsewhere lists the mounts of an agent with another data dir that used the same runtime dir.
	OtherDataDir string            `json:"other_data_dir,omitempty"`
	Elsewhere    []inspectedMount  `json:"other_mounts,omitempty"`
	Plugins      []inspectedPlugin `json:"plugins"`

	// Runtimes lists the volumes that container runtimes know, under names of their own.
	Runtimes []inspectedRuntime `json:"runtimes"`

	// Pending lists changes whose end the agent has not seen. They are not findings.
	Pending  []api.PendingChange `json:"pending"`
	Findings []string            `json:"findings"`
}

type inspectedVolume struct {
	ID           string           `json:"id"`
	PluginID     string           `json:"plugin_id"`
	ExternalID   string           `json:"external_id"`
	Provision    string           `json:"provision,omitempty"`
	Attached     string           `json:"attached"`
	Staged       string           `json:"staged"`
	Claims       []inspectedClaim `json:"claims"`
	Mounts       []inspectedMount `json:"mounts"`
	PendingCalls []string         `json:"pending_calls,omitempty"`
	Guards       []string         `json:"guards,omitempty"` // directories that refuse writes while nothing is mounted there
}

type inspectedClaim struct {
	Alloc   string `json:"alloc"`
	State   string `json:"state"`
	Wanted  bool   `json:"wanted"`
	Owner   string `json:"owner,omitempty"`
	Adopted bool   `json:"adopted,omitempty"`
	Without string `json:"without_plugin,omitempty"` // how far its detach may go without the plugin
}

type inspectedMount struct {
	What   string `json:"what,omitempty"` // "staged", "published for ALLOC", "bound for ALLOC"
	Path   string `json:"path"`
	Is     string `json:"is"` // "as recorded", "in doubt", "missing", "another mount", "dead: …", "hung: …", "not recorded"
	Source string `json:"source,omitempty"`
	FSType string `json:"fs_type,omitempty"`
}

type inspectedPlugin struct {
	ID     string `json:"id"`
	Driver string `json:"driver,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Alive  bool   `json:"alive"`
	// Registered is set if the plugin was registered at run time.
	Registered bool `json:"registered,omitempty"`
}

// These are the states of a mount that need no finding. A call of unknown outcome may have made a
// mount in doubt, or may still undo it.
const (
	asRecorded = "as recorded"
	inDoubt    = "in doubt"
)

func inspect(ctx context.Context, c Config) (*inspection, error) {
	host, err := mount.New()
	if err != nil {
		return nil, err
	}

	in := &inspection{
		DataDir: c.DataDir, DB: "ok", Volumes: []inspectedVolume{}, Leftovers: []inspectedVolume{}, Unexplained: []inspectedMount{},
		Plugins: []inspectedPlugin{}, Runtimes: []inspectedRuntime{}, Findings: []string{},
	}

	snap, running, err := statedb.Inspect(c.stateFile())
	in.AgentRunning, in.NodeID, in.Draining = running, snap.Node.ID, snap.Node.Draining
	if err != nil {
		in.DB = err.Error()
		in.find("%s", in.DB)
	}

	in.records(ctx, host, snap)
	in.plugins(host.Boot(), snap)
	in.runtimes(snap)
	in.Pending = pending(snap.Volumes, snap.Snapshots)
	if err := in.elsewhere(ctx, c, snap.Node.DataDir, host); err != nil {
		return nil, err
	}

	return in, in.unexplained(host, c.mountRoot())
}

// plugins lists the plugins that have been used, and those that are registered at run time.
func (in *inspection) plugins(boot string, snap statedb.Snapshot) {
	registered, listed := map[string]bool{}, map[string]bool{} // by plugin
	for _, d := range snap.Registered {
		registered[d.ID] = true
	}
	for _, p := range snap.Plugins {
		if p.Empty() {
			continue
		}

		in.Plugins = append(in.Plugins, inspectedPlugin{
			ID: p.ID, Driver: p.Info.Driver, PID: p.Process.PID, Alive: alive(p.Process, boot), Registered: registered[p.Of()],
		})
		listed[p.Of()] = true
	}

	for id := range registered {
		if listed[id] {
			continue
		}
		in.Plugins = append(in.Plugins, inspectedPlugin{ID: id, Registered: true})
	}

	slices.SortFunc(in.Plugins, func(a, b inspectedPlugin) int { return cmp.Compare(a.ID, b.ID) })
}

func (in *inspection) find(format string, args ...any) {
	in.Findings = append(in.Findings, fmt.Sprintf(format, args...))
}

// records looks at every path of every record.
func (in *inspection) records(ctx context.Context, host *mount.Host, snap statedb.Snapshot) {
	slices.SortFunc(snap.Volumes, func(a, b volume.Record) int { return cmp.Compare(a.Volume.ID, b.Volume.ID) })
	for _, r := range snap.Volumes {
		v := inspectRecord(ctx, host, r)
		in.Volumes = append(in.Volumes, v)
		for _, m := range v.Mounts {
			if m.Is != asRecorded && m.Is != inDoubt {
				in.find("volume %q: %s (%s) is %s", v.ID, m.Path, m.What, m.Is)
			}
		}
	}

	for _, d := range snap.Debts {
		v := inspectRecord(ctx, host, d.Whole())
		v.PendingCalls = provision.Behind(d.Whole())
		in.Leftovers = append(in.Leftovers, v)
	}
}

func inspectRecord(ctx context.Context, host *mount.Host, r volume.Record) inspectedVolume {
	v := inspectedVolume{
		ID: r.Volume.ID, PluginID: r.Volume.PluginID, ExternalID: r.Volume.ExternalID, Provision: string(r.Volume.Provision),
		Attached: r.Node.Attached.String(), Staged: r.Node.Staged.String(), Claims: []inspectedClaim{}, Mounts: []inspectedMount{}, PendingCalls: r.PendingCalls(), Guards: r.Guards,
	}

	var wg sync.WaitGroup
	var made []*inspectedMount

	look := func(what, path string, side volume.Side, m *volume.MountIdentity) {
		if m == nil && (side == volume.Absent || side == volume.Present || path == "") {
			return
		}
		seen := &inspectedMount{What: what, Path: path}
		made = append(made, seen)
		wg.Go(func() { seen.Is, seen.FSType = compare(host.Look(ctx, path), m) })
	}

	look("staged", r.Node.StagingPath, r.Node.Staged, r.Node.Mount)

	for _, c := range r.Ordered() {
		v.Claims = append(v.Claims, inspectClaim(c))
		look("published for "+c.Alloc, c.Target, c.Published, c.Mount)
		look("bound for "+c.Alloc, c.At, c.Bound, c.BoundMount)
	}

	wg.Wait()
	for _, m := range made {
		if m.Is != "" {
			v.Mounts = append(v.Mounts, *m)
		}
	}

	return v
}

// more returns the optional details of a claim.
func (c inspectedClaim) more() (words string) {
	if c.Owner != "" {
		words += "  owner " + c.Owner
	}
	if c.Adopted {
		words += "  adopted"
	}
	if c.Without != "" {
		words += "  detached without the plugin: " + c.Without
	}

	return words
}

func inspectClaim(c volume.Claim) inspectedClaim {
	in := inspectedClaim{Alloc: c.Alloc, State: string(c.State), Wanted: c.Wanted, Adopted: c.Adopted, Without: string(c.Without)}
	if c.Owner.Mortal() {
		in.Owner = c.Keeper().String()
	}
	return in
}

// compare describes the mount that was seen in place of a recorded one, and its file system. If no
// mount is recorded and none is seen, both are empty.
func compare(s volume.Sight, m *volume.MountIdentity) (is, fsType string) {
	if m == nil {
		switch s.Seen {
		case volume.SeenNothing:
			return "", ""
		case volume.SeenMount:
			return inDoubt, s.Identity.FSType
		default:
			return string(s.Seen) + ": " + s.Detail, s.Identity.FSType
		}
	}

	switch {
	case s.Seen == volume.SeenNothing:
		return "missing", m.FSType
	case s.Seen == volume.SeenMount && s.Is(m):
		return asRecorded, m.FSType
	case s.Seen == volume.SeenMount:
		return "another mount", m.FSType
	default:
		return string(s.Seen) + ": " + s.Detail, m.FSType
	}
}

// unexplained lists the mounts below the root that no record explains.
func (in *inspection) unexplained(host *mount.Host, root string) error {
	known := map[string]bool{root: true}
	for _, v := range slices.Concat(in.Volumes, in.Leftovers) {
		for _, m := range v.Mounts {
			known[m.Path] = true
		}
	}

	entries, err := host.Under(root)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if !known[e.Path] && !mount.IsCanary(e) {
			in.Unexplained = append(in.Unexplained, inspectedMount{Path: e.Path, Is: "not recorded", Source: e.Source, FSType: e.Identity.FSType})
			in.find("%s is mounted (%s), and no record explains it", e.Path, e.Identity.FSType)
		}
	}

	return nil
}

// alive reports whether a recorded process still runs. It is not fooled by another process with the
// same pid.
func alive(p volume.PluginProcess, boot string) bool {
	if p.PID == 0 || p.Boot != boot {
		return false
	}
	st, err := proc.ReadStat(p.PID)
	return err == nil && st.Alive() && st.Began(p.StartTime)
}

func (in *inspection) json(w io.Writer) error {
	text, err := api.MarshalJSON(in)
	if err != nil {
		return err
	}

	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return err
	}

	b.WriteByte('\n')
	_, err = w.Write(b.Bytes())
	return err
}

func (in *inspection) text(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("data dir  %s", in.DataDir)
	line("database  %s", in.DB)

	if in.AgentRunning {
		line("agent     running: it may be ahead of what this copy says; ask it with volctl")
	} else {
		line("agent     not running")
	}

	if in.Draining {
		line("draining  new claims are refused; volctl node undrain")
	}
	list := func(title string, vs []inspectedVolume) {
		for _, v := range vs {
			line("%s %q  plugin %s  external id %q  attached %s  staged %s", title, v.ID, v.PluginID, v.ExternalID, v.Attached, v.Staged)
			if v.Provision != "" {
				line("  %s was begun and has not been seen to end", v.Provision)
			}
			for _, c := range v.Claims {
				line("  claim of %q  %s%s", c.Alloc, c.State, c.more())
			}
			for _, m := range v.Mounts {
				line("  %s  %s (%s)", m.Path, m.Is, m.What)
			}
			for _, o := range v.PendingCalls {
				line("  pending call: %s", o)
			}
		}
	}

	list("volume", in.Volumes)
	list("leftover of volume", in.Leftovers)

	for _, p := range in.Plugins {
		is := "no process of it is recorded"
		if p.PID != 0 {
			is = fmt.Sprintf("pid %d, alive: %t", p.PID, p.Alive)
		}
		if p.Registered {
			is += "; registered at run time"
		}
		line("plugin %q  %s  %s", p.ID, p.Driver, is)
	}

	for _, v := range in.Runtimes {
		line("%s", v.text())
	}
	for _, p := range in.Pending {
		line("pending: %s: %s", p.Subject, p.Message)
	}
	for _, f := range in.Findings {
		line("finding: %s", f)
	}
	_, err := io.WriteString(w, api.Printable(b.String()))
	return err
}
