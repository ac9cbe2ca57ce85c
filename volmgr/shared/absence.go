package shared

import (
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Absence contains the keys that say whether a host is alive, and when it last reported a change. They also
// say whether another host waits for a volume of that host.
type Absence struct {
	Node   Entry[Node]
	Live   Entry[Live]
	Told   Entry[Status]
	Wanted Entry[Wanted]

	host string
}

// Preventer returns a host whose hold keeps the asking host from the volume: the holder, or another user.
// A call in flight is no hold, because another host ends the call of a host that is gone. Preventer returns
// an empty text if there is no such host.
func (s Situation) Preventer(node string) string {
	if s.Hold.Exists() || s.Call.Exists() {
		return "" // the asking host waits for the end of its own earlier hold, or of the call
	}
	if use := s.Use.Value; use.Holder != "" {
		return use.Holder
	}
	for _, u := range s.Users {
		if user, ok := LastID(u.Key); ok && user != node {
			return user
		}
	}
	return ""
}

// AbsenceReads returns the operations that read the Absence of a host, for a host own that waits for a
// volume.
func AbsenceReads(own, host, id string) []Op {
	return []Op{Get(NodeKey(host)), Get(LiveKey(host)), Get(StatusKey(host)), Get(WantedKey(id, own))}
}

// ParseAbsence decodes the results of the operations from AbsenceReads.
func ParseAbsence(own, host, id string, reads [][]KV) (Absence, error) {
	a := Absence{host: host}
	if len(reads) != len(AbsenceReads(own, host, id)) {
		return a, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of host %q", len(reads), host)
	}

	var errs []error
	a.Node = entry[Node](NodeKey(host), reads[0], &errs)
	a.Live = entry[Live](LiveKey(host), reads[1], &errs)
	a.Told = entry[Status](StatusKey(host), reads[2], &errs)
	a.Wanted = entry[Wanted](WantedKey(id, own), reads[3], &errs)
	return a, errors.Join(errs...)
}

// Want returns the transaction that says that the waiting host wants the volume of a host that is gone. The
// lease is that of the waiting host. An empty transaction means that the cluster shows it, or that the
// host is alive.
func (a Absence) Want(lease Lease, now time.Time) Txn {
	shown := a.Wanted.Exists() && a.Wanted.Lease == lease
	if lease == 0 || shown || !a.Node.Exists() || a.Live.Exists() {
		return Txn{}
	}
	return Txn{
		If:   []Compare{Absent(a.Live.Key), Unchanged(a.Wanted.KV)},
		Then: []Op{PutLeased(a.Wanted.Key, a.Wanted.Encode(Wanted{Since: now}), lease)},
	}
}

// Explain adds the absence of the host to the error of another host that waits for it. The error then
// says when the host last reported a change, and proposes a remedy. The host may have been alive for long
// after that, because an idle host reports nothing. Explain changes nothing if the host is alive.
func (a Absence) Explain(held *volume.CallError, now time.Time) {
	if !a.Node.Exists() || a.Live.Exists() {
		return
	}

	seen := a.Node.Value.Since
	if told := a.Told.Value.At; told.After(seen) {
		seen = told
	}
	held.Message += fmt.Sprintf("; host %q is %s, and last reported a change %s", a.host, StateOf(a.Node.Value, false, now), ago(seen, now))
	for _, more := range []string{a.Node.Value.FencingWords(now), a.Wanted.Value.Answer} {
		if more != "" {
			held.Message += "; " + more
		}
	}
	held.Remedy = remedy.Of(remedy.ReturnOrReplace, a.host)
}
