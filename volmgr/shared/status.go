package shared

import (
	"errors"
	"maps"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Status describes the shared volumes of a host to people. No decision uses it, because a host
// writes it late: after all other writes, and at most once a second.
type Status struct {
	// At is the time of the write by the clock of the host.
	At time.Time `json:"at"`

	Volumes map[string]VolumeStatus `json:"volumes,omitempty"` // the shared volumes of the host, by id
}

// VolumeStatus describes a shared volume on one host.
type VolumeStatus struct {
	Claims int          `json:"claims"`
	State  volume.State `json:"state"`

	// Used is the used part of the volume in percent. It is nil if the plugin has not reported it.
	Used *int `json:"used,omitempty"`

	// Health is the worst problem that the plugin has reported, such as "degraded". It is empty if
	// there is none.
	Health string `json:"health,omitempty"`
}

// Same reports whether both values tell people the same. The time of the write does not matter.
func (s Status) Same(o Status) bool {
	return maps.EqualFunc(s.Volumes, o.Volumes, func(a, b VolumeStatus) bool {
		used := (a.Used == nil) == (b.Used == nil)
		if a.Used != nil && b.Used != nil {
			used = *a.Used == *b.Used
		}

		a.Used, b.Used = nil, nil
		return used && a == b
	})
}

// Telling contains the keys that decide about the status of a host.
type Telling struct {
	Meta   Entry[Meta]
	Node   Entry[Node]
	Status Entry[Status]
}

// TellingReads returns the operations that read a Telling.
func TellingReads(node string) []Op {
	return []Op{Get(MetaKey), Get(NodeKey(node)), Get(StatusKey(node))}
}

// ParseTelling decodes the results of the operations from TellingReads.
func ParseTelling(node string, reads [][]KV) (Telling, error) {
	var t Telling
	if len(reads) != len(TellingReads(node)) {
		return t, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of host %q", len(reads), node)
	}

	var errs []error
	t.Meta = entry[Meta](MetaKey, reads[0], &errs)
	t.Node = entry[Node](NodeKey(node), reads[1], &errs)
	t.Status = entry[Status](StatusKey(node), reads[2], &errs)
	return t, errors.Join(errs...)
}

// Tell returns the transaction that writes the status of a host. An empty transaction means that the
// cluster already shows this status, or that a host without shared volumes has nothing to tell.
func (t Telling) Tell(who Asker, s Status) (Txn, error) {
	if err := CheckRegistered(t.Meta, t.Node, who); err != nil {
		return Txn{}, err
	}

	known := t.Status.Exists() || len(s.Volumes) > 0
	if !known || t.Status.Value.Same(s) {
		return Txn{}, nil
	}

	return Txn{
		If:   []Compare{Unchanged(t.Meta.KV), Unchanged(t.Node.KV)},
		Then: []Op{t.Status.Put(s)},
		Else: TellingReads(who.Node),
	}, nil
}
