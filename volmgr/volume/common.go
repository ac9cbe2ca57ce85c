package volume

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// SharedVolume is a shared volume as the cluster knows it. A host has a record of the volume only
// while it uses the volume.
type SharedVolume struct {
	Volume Volume

	// Operation names the create of the volume, or is empty for a registered volume. Its CSI name
	// usually contains the operation.
	Operation string

	// Access is the mode in which hosts use the volume. It is empty while no host uses it. Users
	// names some of these hosts.
	Access call.AccessMode
	Users  []string
}

// InUse reports whether a host holds the volume.
func (s SharedVolume) InUse() bool { return s.Access != "" }

// Merge applies a volume file to the definition of a shared volume, as the function Merge does for a
// volume of this host. A hold of any host counts as use.
func (s SharedVolume) Merge(spec Volume) (Volume, []string, error) {
	return merge(s.Volume, spec, usage{
		inUse: s.InUse(),
		keeps: func(all []call.Capability) bool {
			return !s.InUse() || slices.ContainsFunc(all, func(c call.Capability) bool { return c.Access == s.Access })
		},
	})
}

// Unused returns an error that names the hosts that hold the volume.
func (s SharedVolume) Unused() error {
	if !s.InUse() {
		return nil
	}
	return Errorf(ErrRefused, "volume %q is in use: %s", s.Volume.ID, s.holders()).WithRemedy(remedy.Of(remedy.ShowVolume, s.Volume.ID))
}

// holders describes the hosts that hold the volume.
func (s SharedVolume) holders() string {
	if len(s.Users) == 0 {
		return "hosts hold it in mode " + string(s.Access)
	}
	return "held by host " + strings.Join(s.Users, ", host ") + " in mode " + string(s.Access)
}

// StorageCall is a controller call that creates, changes or deletes the storage of a shared volume.
type StorageCall struct {
	ID        string // unique for each call
	Volume    string
	Driver    string
	Operation string // of the create; empty for other calls
	Call      call.Method

	// Alone is set if no host may use the volume during the call.
	Alone bool

	// Deadline is the time limit of the call. A call whose answer was lost may still have an effect
	// for as long.
	Deadline time.Duration
}

// Growth counts the expansions of a shared volume. Each host that holds the volume completes each
// expansion with a NodeExpandVolume of its own.
type Growth struct {
	Generation uint64 `json:"generation,omitempty"` // increases with each expansion that needs NodeExpandVolume
	Size       int64  `json:"size,omitempty"`       // the size in bytes for NodeExpandVolume

	// Done is the newest generation that a host has completed. A host that gets its hold after that
	// finds the contents of the volume at their full size.
	Done uint64 `json:"done,omitempty"`
}

// Redefined returns the record of a shared volume with a newer definition. The record keeps its state
// on this host. If the volume has grown, the record asks for a NodeExpandVolume.
func (r Record) Redefined(def Volume) Record {
	had, held := r.Volume, r.Volume.Shared && r.Held()
	own := Expansion{}
	if held {
		own.Node = had.Expansion.Node
		if had.Expansion.nodeRefused() {
			own.Refused = had.Expansion.Refused
		}
	}

	switch g := def.Growth; {
	case held && g.Generation > had.Growth.Generation:
		own.Node, own.Refused = g.Size, Refusal{}
	case !held && g.Done < g.Generation:
		own.Node = g.Size
	}

	def.Shared, def.Expansion = true, own
	if !r.Volume.sameDefinition(def) {
		r.Volume = def
	}
	return r
}

// sameDefinition reports whether two volumes are equal in all fields. The times may have different
// locations.
func (v Volume) sameDefinition(o Volume) bool {
	if !v.RegisteredAt.Equal(o.RegisteredAt) {
		return false
	}
	o.RegisteredAt = v.RegisteredAt
	return reflect.DeepEqual(v, o)
}

// OnlyGrows reports whether two definitions of a volume differ at most in the progress of an
// expansion.
func (v Volume) OnlyGrows(now Volume) bool {
	now.Capacity, now.Growth, now.Expansion = v.Capacity, v.Growth, v.Expansion
	return v.sameDefinition(now)
}

// SameDefinition reports whether both records have the same volume.
func (r Record) SameDefinition(o Record) bool { return r.Volume.sameDefinition(o.Volume) }

// Enlarging returns a shared volume with the intent to expand it. If the plugin needs no call of its
// controller, the volume has already its next generation. Enlarging reports whether the volume
// changes.
func (v Volume) Enlarging(now Volume) (Volume, bool) {
	if now.Expansion == v.Expansion {
		return v, false
	}

	now.Growth = now.grownTo(now.Expansion.Node)
	now.Expansion.Node = 0
	return now, true
}

// Enlarged returns the definition of a shared volume after a ControllerExpandVolume to a size.
func (v Volume) Enlarged(size int64, got call.ExpandResult) Volume {
	out := Outcome{Capacity: got.Capacity, NodeRequired: got.NodeRequired}
	r := applyExpand(Record{Volume: v}, Action{Kind: call.ControllerExpand, Size: size}, out)
	r.Volume.Growth = r.Volume.grownTo(r.Volume.Expansion.Node)
	r.Volume.Expansion.Node = 0
	return r.Volume
}

// grownTo returns the growth of a volume whose contents must have a size. The size 0 changes nothing.
func (v Volume) grownTo(size int64) Growth {
	g := v.Growth
	if size > 0 {
		g.Generation, g.Size = g.Generation+1, size
	}
	return g
}

// NodeEnlarged returns the definition of a shared volume after a host has completed NodeExpandVolume
// for a size. It also reports whether the definition changes.
func (v Volume) NodeEnlarged(size int64) (Volume, bool) {
	if g := v.Growth; size < g.Size || g.Done == g.Generation {
		return v, false
	}

	v.Growth.Done = v.Growth.Generation
	if v.Capacity < size { // without a controller, only this call reports the size
		v.Capacity, v.CapacityMin = size, max(v.CapacityMin, size)
	}
	return v, true
}

// OtherScope returns the error for a volume file whose scope differs from the scope of the registered
// volume.
func OtherScope(v Volume) error {
	if v.Shared {
		return Errorf(ErrRefused, "volume %q is registered with scope shared, and the request has scope host", v.ID).
			WithRemedy(remedy.Of(remedy.UnshareVolume, v.ID))
	}
	return Errorf(ErrRefused, "volume %q is registered with scope host, and the request has scope shared", v.ID).
		WithRemedy(remedy.Of(remedy.ShareVolume, v.ID))
}

// OneHost returns the reason why only this host can use the volume, and "" if other hosts may use it.
// A plugin whose storage is local to each host uses a topology that contains the name of the host.
func (v Volume) OneHost(nodeNames ...string) string {
	one := func(segments map[string]string) bool {
		for _, value := range segments {
			if value != "" && slices.Contains(nodeNames, value) {
				return true
			}
		}
		return false
	}

	if len(v.Topologies) == 0 || !slices.ContainsFunc(v.Topologies, one) || len(v.Topologies) > 1 {
		return ""
	}
	return "its storage can be reached only from " + segments(v.Topologies[0])
}
