package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Look compares the records in a state file with the mounts of the host.
func Look(ctx context.Context, here config.Dirs, stateFile string) (*Report, error) {
	host, err := mount.New()
	if err != nil {
		return nil, err
	}

	in := &Report{
		DataDir: here.Data, DB: api.OK, Volumes: []Volume{}, Leftovers: []Volume{}, Unexplained: []Mount{},
		Plugins: []Plugin{}, Runtimes: []Runtime{}, Findings: []string{},
	}

	snap, running, err := statedb.Inspect(stateFile)
	in.AgentRunning, in.NodeID, in.Draining = running, snap.Node().ID, snap.Node().Draining
	if err != nil {
		in.DB = err.Error()
		in.find("%s", in.DB)
	}

	in.records(ctx, host, snap)
	in.plugins(host.Boot(), snap)
	known := volume.Paths(slices.Concat(snap.Volumes(), records.Leftovers(snap)))
	in.tests(ctx, host, snap, known)
	in.runtimes(snap)
	in.Pending = Pending(snap.Volumes(), statedb.Snapshots.All(snap))
	if err := in.elsewhere(ctx, here, snap.Node().DataDir, host); err != nil {
		return nil, err
	}

	return in, in.unexplained(host, known, config.MountRoot(here.Data))
}

// plugins lists the plugins that have been used, and the plugins that were registered at run time.
func (in *Report) plugins(boot string, snap statedb.View) {
	registered, listed := map[string]bool{}, map[string]bool{} // the keys are plugin ids
	for _, d := range statedb.Registered.All(snap) {
		registered[d.ID] = true
	}
	for _, p := range statedb.Plugins.All(snap) {
		if p.Empty() {
			continue
		}

		in.Plugins = append(in.Plugins, Plugin{
			ID: p.ID, Driver: p.Info.Driver, PID: p.Process.PID, Alive: alive(p.Process, boot), Registered: registered[p.Of()],
		})
		listed[p.Of()] = true
	}

	for id := range registered {
		if listed[id] {
			continue
		}
		in.Plugins = append(in.Plugins, Plugin{ID: id, Registered: true})
	}

	slices.SortFunc(in.Plugins, func(a, b Plugin) int { return cmp.Compare(a.ID, b.ID) })
}

func (in *Report) find(format string, args ...any) {
	in.Findings = append(in.Findings, fmt.Sprintf(format, args...))
}

// records examines every recorded path of every volume.
func (in *Report) records(ctx context.Context, host *mount.Host, snap statedb.View) {
	all := snap.Volumes()
	slices.SortFunc(all, func(a, b volume.Record) int { return cmp.Compare(a.Volume.ID, b.Volume.ID) })
	for _, r := range all {
		v := inspectRecord(ctx, host, r)
		in.Volumes = append(in.Volumes, v)
		for _, m := range v.Mounts {
			if m.Is != asRecorded && m.Is != inDoubt {
				in.find("volume %q: %s (%s) is %s", v.ID, m.Path, m.What, m.Is)
			}
		}
	}

	for _, r := range records.Leftovers(snap) {
		v := inspectRecord(ctx, host, r)
		v.PendingCalls = provision.DescribeLeftovers(r)
		in.Leftovers = append(in.Leftovers, v)
	}
}

func inspectRecord(ctx context.Context, host *mount.Host, r volume.Record) Volume {
	v := Volume{
		ID: r.Volume.ID, PluginID: r.Volume.PluginID, ExternalID: r.Volume.ExternalID, Provision: string(r.Volume.Provision),
		Attached: r.Node.Attached.String(), Staged: r.Node.Staged.String(), Claims: []Claim{}, Mounts: []Mount{}, PendingCalls: r.PendingCalls(), Guards: r.Guards,
	}

	if r.Node.Hold.State != volume.Absent {
		v.Hold = r.Node.Hold.State.String()
	}
	for _, c := range r.Ordered() {
		v.Claims = append(v.Claims, inspectClaim(c))
	}

	// An own directory that is not bound may be an on-demand mount, which a look would trigger.
	places := slices.DeleteFunc(r.Places(), func(p volume.Place) bool {
		return p.Kind == volume.PlaceBound && p.Side == volume.Absent && p.Mount == nil
	})
	v.Mounts = mountsAt(ctx, host, places)
	return v
}

// mountsAt compares the mounts at some places with the recorded ones. It returns one mount for each
// path, and none for a path without a recorded mount and without a seen one.
func mountsAt(ctx context.Context, host *mount.Host, places []volume.Place) []Mount {
	all := make([]Mount, len(places))
	var wg sync.WaitGroup
	for i, p := range places {
		wg.Go(func() {
			all[i] = Mount{What: string(p.Kind), Path: p.Path}
			if p.Alloc != "" {
				all[i].What += " for " + p.Alloc
			}
			all[i].Is, all[i].FSType = compare(host.Look(ctx, p.Path), p.Mount)
		})
	}

	wg.Wait()
	listed := map[string]bool{}
	return slices.DeleteFunc(all, func(m Mount) bool {
		omit := m.Is == "" || listed[m.Path]
		listed[m.Path] = true
		return omit
	})
}

// tests lists the volumes of plugin tests that are running, or that were interrupted. It adds their
// paths to the known ones.
func (in *Report) tests(ctx context.Context, host *mount.Host, snap statedb.View, known map[string]bool) {
	for _, p := range statedb.Plugins.All(snap) {
		if p.Scratch == nil {
			continue
		}

		var places []volume.Place
		for _, path := range p.Scratch.Paths() {
			known[path] = true
			places = append(places, volume.Place{Kind: "of the test", Path: path})
		}

		in.Tests = append(in.Tests, Test{Plugin: p.Of(), Volume: p.Scratch.Name(), Mounts: mountsAt(ctx, host, places)})
		in.find("a test of plugin %q has, or left, volume %q", p.Of(), p.Scratch.Name())
	}

	slices.SortFunc(in.Tests, func(a, b Test) int { return cmp.Compare(a.Plugin, b.Plugin) })
}

func inspectClaim(c volume.Claim) Claim {
	in := Claim{Alloc: c.Alloc, State: string(c.State), Wanted: c.Wanted, Adopted: c.Adopted, Without: string(c.Without)}
	if c.Owner.Mortal() {
		in.Owner = c.Keeper().String()
	}
	return in
}

// compare compares the present mount at a path with the recorded mount. It returns the state of the
// mount, such as "missing", and the file system type. If no mount is recorded and none is present,
// it returns empty texts.
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

// unexplained lists the mounts below the root whose paths are not known.
func (in *Report) unexplained(host *mount.Host, known map[string]bool, root string) error {
	entries, err := identity.MountsBelow(host, root)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if !known[e.Path] {
			in.Unexplained = append(in.Unexplained, Mount{Path: e.Path, Is: "not recorded", Source: e.Source, FSType: e.Identity.FSType})
			in.find("%s is mounted (%s), and no record explains it", e.Path, e.Identity.FSType)
		}
	}

	return nil
}

// alive reports whether a recorded process still runs. It compares the start time, because another
// process may have the same pid by now.
func alive(p plugin.Process, boot string) bool {
	if p.PID == 0 || p.Boot != boot {
		return false
	}
	st, err := proc.ReadStat(p.PID)
	return err == nil && st.Alive() && st.Began(p.StartTime)
}

// runtimes lists the volumes of container runtimes.
func (in *Report) runtimes(snap statedb.View) {
	for _, v := range statedb.RuntimeVolumes.All(snap) {
		_, known := snap.Volume(v.VolumeID)
		in.Runtimes = append(in.Runtimes, Runtime{v, !known})
	}
}

// Pending returns the changes that were started and of which the agent does not know the result.
func Pending(volumes []volume.Record, snapshots []volume.SnapshotIntent) []api.PendingChange {
	all := []api.PendingChange{}
	for _, p := range volume.PendingChanges(volumes, snapshots) {
		all = append(all, api.PendingChange{Subject: p.Subject, Since: p.Since, Message: p.Message, Command: suggest.Words(p.Command)})
	}
	return all
}

// elsewhere lists the mounts of another agent that has the same runtime dir and a different data
// dir.
func (in *Report) elsewhere(ctx context.Context, here config.Dirs, movedFrom string, host *mount.Host) error {
	e, err := identity.LookElsewhere(ctx, here, movedFrom, host)
	if err != nil || e.Empty() {
		return err
	}

	in.OtherDataDir = e.DataDir
	for _, m := range e.Mounts {
		in.Elsewhere = append(in.Elsewhere, Mount{Path: m.Path, Is: "not recorded", Source: m.Source, FSType: m.Identity.FSType})
	}
	in.find("%s", e.Said())
	return nil
}
