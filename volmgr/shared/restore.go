package shared

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// ErrWentBack means that the store shows an older state than this host has seen. Its operator has
// restored it from a backup, and has not begun a new epoch.
var ErrWentBack = volume.Errorf(volume.ErrRefused, "etcd has gone back to an older state")

// wentBack returns an error that wraps ErrWentBack.
func wentBack(format string, args ...any) error {
	return volume.Errorf(ErrWentBack, "etcd has gone back: "+format, args...).
		WithHint("if etcd was restored from a backup, run: volctl cluster restored")
}

// CheckAge returns an error that wraps ErrWentBack if the store is older than the state that the host
// remembers. In a new epoch, an older store is expected.
func (a Arrival) CheckAge(s Self) error {
	m, had, n := a.Meta.Value, s.Member, a.Node.Value
	if had.ClusterID == "" || m.Epoch > had.Epoch {
		return nil
	}

	switch {
	case m.Epoch < had.Epoch:
		return wentBack("its epoch is %d, and this host has seen %d", m.Epoch, had.Epoch)
	case m.EpochTail != had.Tail:
		return wentBack("its epoch %d began with another restore than the epoch %d that this host has seen", m.Epoch, had.Epoch)
	case !a.Node.Exists() && had.Incarnation > 0:
		return wentBack("it does not know host %q, which has registered %d times", s.Node, had.Incarnation)
	case n.Incarnation < had.Incarnation:
		return wentBack("it shows incarnation %d of host %q, and this host has had %d", n.Incarnation, s.Node, had.Incarnation)
	case a.Revision < had.Revision:
		return wentBack("its revision is %d, and this host has seen %d", a.Revision, had.Revision)
	case s.StoreID != "" && had.StoreID != "" && s.StoreID != had.StoreID:
		return wentBack("it is cluster %s of etcd, and this host has registered in cluster %s", s.StoreID, had.StoreID)
	default:
		return nil
	}
}

// CheckRevision returns an error that wraps ErrWentBack if a read has returned an older revision than
// the host had seen before the read.
func CheckRevision(revision, seen int64) error {
	if revision < seen {
		return wentBack("its revision is %d, and this host has seen %d", revision, seen)
	}
	return nil
}

// LostWithoutProof returns an error that wraps ErrWentBack, for a hold that the store lacks. Only the
// host itself or a recorded proof ends a hold.
func LostWithoutProof(node, id string) error {
	return wentBack("it does not show the hold of host %q on volume %q, and no proof that has ended the hold", node, id)
}

// Suspend returns the transaction by which a host stops the admission of writers, after it has found
// that the store went back. Other hosts may have seen less, and would use volumes that this host
// uses. An empty transaction means that nothing is left to do. This is the only write of a host that
// is not registered, apart from its registration.
func (a Arrival) Suspend(node string, now time.Time) Txn {
	m := a.Meta.Value
	if !a.Meta.Exists() || m.Schema > Schema || m.WentBack != "" {
		return Txn{}
	}

	m.WentBack = node
	m.Suspended = "host " + node + " has seen a newer state than etcd has, at " + now.UTC().Format(time.RFC3339)
	return Txn{If: []Compare{Unchanged(a.Meta.KV)}, Then: []Op{a.Meta.Put(m)}}
}

// Missing returns the hosts that have not written all their holds in the present epoch. They may use
// volumes that the store does not show. A host that is proven to be off is not missing. A proof from before
// the restore does not count, because the host may have returned after the backup and used other volumes.
func Missing(m Meta, nodes map[string]Node) (names []string) {
	for name, n := range nodes {
		replaced := n.Registration == ""
		if n.Era != m.Era() && !n.ProvenOff(m) && !replaced {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Reclaim returns the transaction that writes the hold of a host anew, after a restore of the store. The
// host uses the volume, and its own record has the hold. If the store lacks the definition of the
// volume, the transaction also writes the definition v. An empty transaction means that the store has
// the hold.
//
// If another host uses the volume in a way that excludes this host, the transaction records the host
// as a rival. Both keep the volume until a person decides. If the store shows an earlier hold of the host, of
// another kind, the transaction replaces it. A controller call for the attachment of the
// host, which the store shows again, ended long ago: the transaction deletes it.
func (p Place) Reclaim(who Asker, v volume.Volume, h Hold) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}

	if d := p.Volume.Value.Volume; p.Volume.Exists() && (d.Driver != v.Driver || d.ExternalID != v.ExternalID) {
		return Txn{}, volume.Errorf(volume.ErrRefused, "the cluster has a volume %q with external_id %q of driver %s, and this host uses one with external_id %q of driver %s",
			p.id, d.ExternalID, d.Driver, v.ExternalID, v.Driver).WithHint("detach the volume on this host")
	}

	sameHold := p.Hold.Exists() && p.Hold.Value.matches(h.Operation, h.Access, h.Reader)
	old := p.Call.Exists() && p.Call.Value.Target == who.Node // a call of the time before the restore
	compares, then := []Compare{Unchanged(p.Hold.KV), Unchanged(p.Call.KV)}, []Op{p.Hold.Put(h)}
	if old {
		then = append(then, Delete(p.Call.Key))
	}
	switch {
	case sameHold && p.Use.Exists() && p.Volume.Exists() && p.Hold.Value.Attachment == h.Attachment && !old:
		return Txn{}, nil
	case sameHold && p.Use.Exists() && p.Volume.Exists():
		return p.txn(compares, then...), nil
	}

	compares = append(compares, Unchanged(p.Volume.KV))
	if !p.Volume.Exists() {
		if err := p.checkUnique(); err != nil {
			return Txn{}, err
		}
		also, external := p.claimStorage()
		compares = append(compares, also...)
		then = append(append(then, external...), p.put(Definition{Volume: v}))
	}

	use, ops, still := leave(p.id, p.Use.Value, p.Users, who.Node)
	use, joined := use.join(p.id, Rival{Host: who.Node, Access: h.Access, Reader: h.Reader, Since: h.Since})
	if p.Hold.Exists() && len(joined) == 0 {
		then = append(then, Delete(UserKey(p.id, who.Node))) // the host was a user under an earlier hold
	}
	use.Generation++
	compares = append(append(compares, Unchanged(p.Use.KV)), still...)
	return p.txn(compares, slices.Concat(then, ops, joined, []Op{p.Use.Put(use)})...), nil
}

// HoldFrom returns the hold of a host as the host's own record has it.
func HoldFrom(r volume.Record, who Asker) Hold {
	n := r.Node
	h := Hold{Access: n.Hold.Access, Reader: n.Hold.Reader, Operation: n.Hold.Operation, Incarnation: who.Incarnation, Since: n.Hold.Since}
	switch {
	case n.Attached == volume.Present && n.Hold.Confirmed:
		h.Attachment = Attached
	case n.Attached != volume.Absent:
		h.Attachment = Unclear
	case n.Uses.Attach:
		h.Attachment = Attaching
	}
	if h.Attachment != "" {
		h.NodeID = n.NodeID
	}
	return h
}

// join adds a host to the use of a volume: as the holder, as one of the users, or as a rival.
func (u Use) join(id string, r Rival) (Use, []Op) {
	own := holds(r.Access, r.Reader)
	switch {
	case u.Access != "" && u.Access != r.Access, own && u.Holder != "" && u.Holder != r.Host:
		u.Rivals = append(slices.Clone(u.Rivals), r)
		return u, nil
	case own:
		u.Access, u.Holder, u.Since = r.Access, r.Host, r.Since
		return u, nil
	default:
		u.Access = r.Access
		return u, []Op{Put(UserKey(id, r.Host), Entry[User]{}.Encode(User{Since: r.Since}))}
	}
}

// leave removes a host from the use of a volume. The oldest rival that is permitted then becomes the
// holder or a user. The parameter users contains at most two of the users. The caller also deletes
// the key of the host's user. The result still is the condition under which the answer stays true.
func leave(id string, u Use, users []Entry[User], node string) (now Use, ops []Op, still []Compare) {
	if u.Holder == node {
		u.Holder, u.Since = "", time.Time{}
	}
	u.Rivals = slices.DeleteFunc(slices.Clone(u.Rivals), func(r Rival) bool { return r.Host == node })
	if len(u.Rivals) == 0 {
		u.Rivals = nil
	}

	others, still := othersUse(id, users, node)
	if !others && u.Holder == "" {
		u.Access = ""
	}

	for i, r := range u.Rivals {
		rest := u
		rest.Rivals = slices.Delete(slices.Clone(u.Rivals), i, i+1)
		next, joined := rest.join(id, r)
		if len(next.Rivals) < len(u.Rivals) {
			if len(next.Rivals) == 0 {
				next.Rivals = nil
			}
			return next, joined, still
		}
	}
	return u, nil, still
}

// same reports whether two values are equal.
func (u Use) same(o Use) bool {
	return u.Access == o.Access && u.Holder == o.Holder && u.Since.Equal(o.Since) && u.Generation == o.Generation && slices.Equal(u.Rivals, o.Rivals)
}

// CheckVerified returns an error if a host must not use the hold that it has, although the store shows
// the hold. The host asks after a reboot or a lost answer, so nothing of the volume is mounted. After
// a restore, another host may use the volume.
func (s Situation) CheckVerified(a Ask) error { return s.checkAlone(a.Access, a.Reader) }

// checkAlone returns an error if another host may use the volume since a restore of the store, in a way that
// excludes the asking host. The store may lack the hold of that host until the host has registered. After that,
// one of both hosts is a rival.
func (s Situation) checkAlone(access call.AccessMode, reader bool) error {
	switch {
	case len(s.Use.Value.Rivals) > 0:
		return s.conflict()
	case s.waitsForResume(access, reader):
		return s.suspended()
	default:
		return nil
	}
}

// suspended returns the error for a writer while the admission of writers is stopped.
func (s Situation) suspended() error {
	m, command := s.Meta.Value, "volctl cluster resume"
	if m.WentBack != "" {
		command = "volctl cluster restored"
	}
	return s.held("volume %q waits until a person runs \"%s\", because etcd was restored: %s", s.id, command, m.Suspended)
}

// conflict returns the error for a volume that hosts use against its mode. It names them.
func (s Situation) conflict() error {
	return s.held("%s", ConflictWords(s.id, s.Use.Value, s.Users))
}

// ConflictWords describes the conflict of a volume that hosts use against its mode. It is empty if
// there is no conflict.
func ConflictWords(id string, use Use, users []Entry[User]) string {
	if len(use.Rivals) == 0 {
		return ""
	}

	var names []string
	for _, h := range Holders(id, use, users) {
		names = append(names, strconv.Quote(h.Host))
	}
	slices.Sort(names)
	return fmt.Sprintf("volume %q is used by several hosts since etcd was restored: %s; detach its claims on all hosts but one", id, strings.Join(names, ", "))
}
