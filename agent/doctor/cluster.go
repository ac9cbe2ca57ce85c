package doctor

import (
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// Cluster describes the part of this host in its cluster.
type Cluster struct {
	Joined    bool // whether the configuration has a section cluster; if not, all else is empty
	Endpoints string

	Away  string    // why the cluster is not usable; empty if it is
	Since time.Time // when Away began

	// Lag is how long the oldest change by this host has been waiting for the watch.
	Lag time.Duration

	// Err is the reason why the agent cannot read the cluster. Holds, Calls and Conflicts are then
	// incomplete.
	Err error

	Holds     []shared.HoldView // of this host
	Calls     []OpenCall
	Conflicts []Conflict

	// Contradictions describes keys of the cluster that contradict each other. Only the host that
	// cleans up first looks for them.
	Contradictions []string
}

// OpenCall is an announced controller call of any host.
type OpenCall struct {
	shared.CallView
	State shared.HostState // of the executor; empty if it was not read

	// Deadline is the time limit of a call to the plugin of the volume.
	Deadline time.Duration
}

// ConflictKind says which two things exclude each other.
type ConflictKind string

// These are the kinds of conflicts.
const (
	SameID      ConflictKind = "id"      // a volume of this host has the id of a shared volume
	SameStorage ConflictKind = "storage" // a volume of this host has the storage of a shared volume
	TwoHolders  ConflictKind = "holders" // two hosts hold a volume that one host may use
)

// Conflict is a volume of this host that excludes another use in the cluster.
type Conflict struct {
	Kind   ConflictKind
	Volume string // on this host
	Other  string // the id of the shared volume, or the other holder
}

// comparison is a shared volume of this host with its hold in the cluster.
type comparison struct {
	Volume
	hold *shared.HoldView // nil if the cluster shows no hold
}

// settleCluster marks the volumes whose records have changed since their examination. The cluster
// was read later, so it may show a newer state than the examined record.
func (d *Doctor) settleCluster(p *Picture) {
	for i, v := range p.Volumes {
		if now, ok := d.o.Records.Volume(v.Record.Volume.ID); v.Record.Volume.Shared && (!ok || now.Generation != v.Record.Generation) {
			p.Volumes[i].Moving = true
		}
	}

	known := map[string]bool{}
	for _, v := range p.Volumes {
		known[v.Record.Volume.ID] = true
	}
	p.Cluster.Holds = slices.DeleteFunc(p.Cluster.Holds, func(h shared.HoldView) bool {
		_, ok := d.o.Records.Volume(h.Volume)
		return ok && !known[h.Volume] // a record that was added during the examination explains the hold
	})
}

// compared returns the shared volumes of this host that are at rest, each with its hold.
func (p Picture) compared() (all []comparison) {
	for _, v := range p.Volumes {
		if !v.Record.Volume.Shared || v.Moving {
			continue
		}

		i := slices.IndexFunc(p.Cluster.Holds, func(h shared.HoldView) bool { return h.Volume == v.Record.Volume.ID })
		c := comparison{Volume: v}
		if i >= 0 {
			c.hold = &p.Cluster.Holds[i]
		}
		all = append(all, c)
	}

	return all
}

// stray returns the holds of this host that no record explains.
func (p Picture) stray() (all []shared.HoldView) {
	known := map[string]bool{}
	for _, r := range p.records() {
		known[r.Volume.ID] = known[r.Volume.ID] || r.Volume.Shared
	}
	for _, h := range p.Cluster.Holds {
		if !known[h.Volume] {
			all = append(all, h)
		}
	}
	return all
}
