package simulation_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// judge checks the rules of the cluster at each change of the storage and of the store.
type judge struct {
	w *world

	txn sync.Mutex // held during each transaction

	mu     sync.Mutex             // guards the fields below
	tokens map[string]int64       // the newest token of each volume
	holds  map[holder]int64       // the tokens of all holds in the store
	calls  map[string]shared.Call // the announced calls, by volume
}

// holder is a host with a hold on a volume.
type holder struct{ host, volume string }

// execute executes a transaction, and checks its changes of holds.
func (j *judge) execute(by string, s *memory.Store, t shared.Txn) (shared.Result, error) {
	j.txn.Lock()
	defer j.txn.Unlock()
	moves := j.moves(t)
	res, err := s.Do(context.Background(), t)
	if err != nil || !res.Done {
		return res, err
	}
	for _, op := range t.Then {
		j.noteCall(by, op)
		if id, node, ok := shared.WantedIDs(op.Key); ok && op.Kind != shared.OpGet {
			j.w.note(by, id, "wanted by %s: %t", node, op.Kind == shared.OpPut)
		}
		node, id, ok := shared.HoldIDs(op.Key)
		if !ok || !shared.Holds().Contains(op.Key) {
			continue
		}
		at := holder{node, id}
		j.mu.Lock()
		had := j.holds[at] != 0
		j.mu.Unlock()
		switch {
		case op.Kind == shared.OpPut && !had:
			j.granted(by, at, res.Revision)
			j.reserved(at, op, moves[id])
		case op.Kind == shared.OpPut:
			e, _ := shared.Decode[shared.Hold](shared.KV{Mod: 1, Value: op.Value})
			j.w.note(by, id, "hold of %s: %s", node, e.Value.Attachment)
		case op.Kind == shared.OpDelete && had:
			j.dropped(by, at, t)
		}
	}
	return res, nil
}

// noteCall remembers the changes of announced calls.
func (j *judge) noteCall(by string, op shared.Op) {
	if op.Kind == shared.OpGet || !shared.Calls().Contains(op.Key) {
		return
	}
	id, _ := shared.LastID(op.Key)
	j.mu.Lock()
	defer j.mu.Unlock()
	if op.Kind == shared.OpDelete {
		delete(j.calls, id)
		j.w.note(by, id, "the announced call ends")
		return
	}
	e, _ := shared.Decode[shared.Call](shared.KV{Mod: 1, Value: op.Value})
	j.calls[id] = e.Value
	j.w.note(by, id, "announces %s of %s for %s (taken %t, fence %t, incarnation %d)",
		e.Value.Call, e.Value.Executor, e.Value.Target, e.Value.Taken, e.Value.Fence, e.Value.Incarnation)
}

// granted checks a new hold: its token is greater than all earlier tokens of the volume (I7).
func (j *judge) granted(by string, at holder, token int64) {
	j.w.count("hold granted")
	j.w.note(by, at.volume, "hold of %s granted, token %d", at.host, token)
	j.mu.Lock()
	defer j.mu.Unlock()
	if token <= j.tokens[at.volume] {
		j.w.breaks(at.volume, "I7: the token %d of %s is not greater than %d", token, at.host, j.tokens[at.volume])
	}
	j.tokens[at.volume], j.holds[at] = token, token
}

// dropped checks the end of a hold. A host ends only its own hold, and only after it has unmounted the
// volume. Another host needs a proof in the same transaction (I2, I3).
func (j *judge) dropped(by string, at holder, t shared.Txn) {
	j.mu.Lock()
	delete(j.holds, at)
	j.mu.Unlock()
	j.w.note(by, at.volume, "hold of %s ends", at.host)
	if by != at.host {
		proof := slices.ContainsFunc(t.Then, func(op shared.Op) bool {
			return op.Kind == shared.OpPut && shared.Proofs(at.host).Contains(op.Key)
		})
		if !proof {
			j.w.breaks(at.volume, "I2: %s drops the hold of %s without a proof", by, at.host)
		}
		j.w.count("takeover")
	}

	h := j.w.hostOf(at.host)
	j.w.san.mu.Lock()
	defer j.w.san.mu.Unlock()
	for path, m := range h.mounts {
		d := j.w.san.disks[m.volume]
		switch {
		case d.id != at.volume:
		case by == at.host:
			j.w.breaks(at.volume, "I1: %s gives up its hold, and %s is still mounted", at.host, path)
		case j.w.san.reaches(h, d):
			j.w.breaks(at.volume, "I3: %s drops the hold of %s, which can still write at %s", by, at.host, path)
		}
	}
}

// hostOf returns the host with a name.
func (w *world) hostOf(name string) *host {
	return w.hosts[slices.IndexFunc(w.hosts, func(h *host) bool { return h.name == name })]
}

// hostOfNode returns the host with a CSI node id.
func (w *world) hostOfNode(node string) *host { return w.hostOf(strings.TrimPrefix(node, "node-")) }

// callBegins checks that no other host has a controller call in flight for a volume (I11). A call that
// rests on a decision from before a pause of its host is exempt. The caller holds san.mu.
func (j *judge) callBegins(one *flight) {
	j.mu.Lock()
	announced, ok := j.calls[one.disk.id]
	j.mu.Unlock()
	fits := ok && announced.Executor == one.by.h.name && announced.Call == one.kind && announced.NodeID == one.node
	if !fits && !one.late {
		j.w.breaks(one.disk.id, "I11: %s calls %s for %s, and has announced %+v", one.by.h.name, one.kind, one.node, announced)
	}
	for other := range j.w.san.calls {
		exempt := one.late || other.late || j.harmless(one, other)
		if other.disk == one.disk && other.by.h != one.by.h && !exempt {
			j.w.breaks(one.disk.id, "I11: %s calls %s for %s while %s of %s for %s is in flight",
				one.by.h.name, one.kind, one.node, other.kind, other.by.h.name, other.node)
		}
	}
}

// harmless reports whether the late effect of another call cannot disturb a new call. The executor of the
// other call has ended its wait. A detach of another node finds nothing that the new call makes. The record
// of a host with a hold waits for the late effects on its own attachment. The caller holds san.mu.
func (j *judge) harmless(one, other *flight) bool {
	target := holder{strings.TrimPrefix(other.node, "node-"), other.disk.id}
	elsewhere := other.kind == call.ControllerUnpublish && other.node != one.node
	j.mu.Lock()
	defer j.mu.Unlock()
	return other.alone && (elsewhere || j.holds[target] != 0)
}

// detached checks that the storage is not taken from a host that uses it. The caller holds san.mu.
func (j *judge) detached(one *flight) {
	h := j.w.hostOfNode(one.node)
	j.mu.Lock()
	announced := j.calls[one.disk.id]
	j.mu.Unlock()
	fences := announced.Target == h.name && (announced.Fence || announced.Taken) // the hold shows the attachment as unknown
	for path, m := range h.mounts {
		if j.w.san.disks[m.volume] == one.disk && !one.late && !fences {
			j.w.breaks(one.disk.id, "I2: %s detaches %s, where %s is mounted", one.by.h.name, h.name, path)
		}
	}
}

// writers checks that at most one host writes a single-writer volume (I1). The caller holds san.mu.
func (j *judge) writers(d *disk) {
	var use, write []string
	alone, one := false, false // a host uses the volume in a single-node mode, or in a mode with one writer
	for _, h := range j.w.hosts {
		uses, writes := false, false
		for _, m := range h.mounts {
			if m.volume != "disk"+d.id[1:] || !j.w.san.reaches(h, d) {
				continue
			}
			uses, writes = true, writes || m.writes
			alone = alone || m.access == call.SingleNodeWriter || m.access == call.SingleNodeMultiWriter
			one = one || m.access == call.MultiNodeSingleWriter
		}
		if uses {
			use = append(use, h.name)
		}
		if writes {
			write = append(write, h.name)
		}
	}
	if alone && len(use) > 1 {
		j.w.breaks(d.id, "I1: hosts %v use a volume in a single-node mode", use)
	}
	if one && len(write) > 1 {
		j.w.breaks(d.id, "I1: hosts %v write a volume in a single-writer mode", write)
	}
}

// unrest describes a difference between the claims, the holds, the mounts and the attachments, or returns
// "" if there is none (I4). The second result names the volume.
func (w *world) unrest() (string, string) {
	holds := map[holder]shared.Hold{}
	if err := each(w, shared.Holds(), func(key string, h shared.Hold) {
		node, id, _ := shared.HoldIDs(key)
		holds[holder{node, id}] = h
	}); err != "" {
		return err, ""
	}
	for _, span := range []shared.Span{shared.Calls(), shared.Tasks(), shared.Questions(), shared.Moves()} {
		page, err := w.store.Range(context.Background(), span, 1, 0)
		if err != nil {
			return err.Error(), ""
		}
		if len(page.KVs) > 0 {
			id, _ := shared.LastID(page.KVs[0].Key)
			return "the key " + page.KVs[0].Key + " is left: " + string(page.KVs[0].Value), id
		}
	}
	if bad, id := w.undecided(); bad != "" {
		return bad, id
	}
	if bad, id := w.fencedHost(); bad != "" {
		return bad, id
	}
	if bad, id := w.leakedUsers(holds); bad != "" {
		return bad, id
	}

	w.san.mu.Lock()
	defer w.san.mu.Unlock()
	expected := map[holder]bool{}
	for _, h := range w.hosts {
		if bad, id := h.unrest(holds, expected); bad != "" {
			return bad, id
		}
	}
	for at := range holds {
		if !expected[at] {
			return fmt.Sprintf("host %s holds volume %s, and no claim needs that", at.host, at.volume), at.volume
		}
	}
	for _, d := range w.san.disks {
		for node := range d.attached {
			h := w.hostOfNode(node)
			name := h.name
			if h.outdated.Load() && w.restored.Load() && !d.driver.lists && !expected[holder{name, d.id}] {
				delete(d.attached, node) // a documented limit: the record, the store and the driver do not show it
				continue
			}
			if !expected[holder{name, d.id}] {
				return fmt.Sprintf("volume %s is attached to host %s, and no claim needs that", d.id, name), d.id
			}
		}
	}
	if len(w.san.calls) > 0 {
		return "a controller call is in flight", ""
	}
	return "", ""
}

// unrest describes a difference between the claims, the holds and the mounts of one host. It adds the
// holds that the claims need to expected. The caller holds san.mu.
func (h *host) unrest(holds map[holder]shared.Hold, expected map[holder]bool) (string, string) {
	a := h.agent.Load()
	if a == nil {
		return "no agent runs on host " + h.name, ""
	}
	if err := a.holds.Usable(); err != nil {
		return fmt.Sprintf("host %s is away: %v", h.name, err), h.w.named(err.Error())
	}

	paths := map[string]bool{}
	for _, r := range a.records.Volumes() {
		id, d := r.Volume.ID, driverOf(r.Volume.PluginID)
		at := holder{h.name, id}
		say := func(format string, args ...any) (string, string) {
			last := a.queue.Last(r)
			if last == nil {
				last = &volume.Attempt{}
			}
			return fmt.Sprintf("host %s, volume %s: ", h.name, id) + fmt.Sprintf(format, args...) +
				fmt.Sprintf("; the last step is %s (running %t, %d tries, next in %s): %v; the record is %+v",
					last.Action.Kind, last.Running, last.Tries, time.Until(last.Next), last.Err, r.Node), id
		}
		served := false
		waits := r.Node.Hold.State == volume.Unknown || r.Node.Hold.State == volume.Absent // it may have given up an unfit hold
		for _, c := range r.Claims {
			m, ok := h.mounts[c.Target]
			switch {
			case !c.Wanted:
				return say("claim %s is being detached", c.Alloc)
			case c.State == volume.Mounted && !ok && waits && h.mayWait(r, holds):
				// After a boot with older records, the claim waits for the host that has the volume now.
			case c.State == volume.Mounted && (!ok || c.Mount == nil || c.Mount.ID != m.id):
				return say("claim %s is mounted, and the target is %+v", c.Alloc, m)
			case c.State == volume.Mounted:
				served, paths[c.Target], paths[r.Node.StagingPath] = true, true, d.stage
			case !h.mayWait(r, holds):
				return say("claim %s waits, and no other host holds the volume", c.Alloc)
			}
		}
		expected[at] = served
		hold, ok := holds[at]
		switch {
		case served && !ok:
			return say("the volume is mounted without a hold")
		case served && d.attach && hold.Attachment != shared.Attached && r.Node.Attached != volume.Unknown:
			return say("the hold shows the attachment %q, and the record does not", hold.Attachment)
		case served && !h.w.san.reaches(h, h.w.san.disks[r.Volume.ExternalID]):
			return say("the volume is mounted and not attached")
		case len(r.Claims) == 0 && r.Held():
			return say("no claim needs the volume, and the record is held")
		}
	}
	for path := range h.mounts {
		if !paths[path] {
			return fmt.Sprintf("host %s: %s is mounted, and no claim needs that", h.name, path), path[strings.LastIndexByte(path, '/')+1:]
		}
	}
	return "", ""
}

// mayWait reports whether another host prevents a claim of this host (I8).
func (h *host) mayWait(r volume.Record, holds map[holder]shared.Hold) bool {
	for at, other := range holds {
		rival := at.volume == r.Volume.ID && at.host != h.name
		reads := other.Access == call.MultiNodeSingleWriter && (other.Reader || r.Node.Hold.Reader)
		compatible := other.Access == r.Node.Hold.Access && (other.Access == call.MultiNodeMultiWriter || reads)
		if rival && !compatible {
			return true
		}
	}
	return false
}

// leakedUsers describes a key about the use of a volume that no hold explains.
func (w *world) leakedUsers(holds map[holder]shared.Hold) (bad, id string) {
	if err := each(w, shared.AllUsers(), func(key string, _ shared.User) {
		volumeID, node, _ := shared.UserIDs(key)
		if _, ok := holds[holder{node, volumeID}]; !ok {
			bad, id = "the key "+key+" is left", volumeID
		}
	}); err != "" {
		return err, ""
	}
	if err := each(w, shared.Uses(), func(key string, u shared.Use) {
		volumeID, _ := shared.LastID(key)
		_, ok := holds[holder{u.Holder, volumeID}]
		if u.Holder != "" && !ok {
			bad, id = fmt.Sprintf("the key %s names %s, which has no hold", key, u.Holder), volumeID
		}
	}); err != "" {
		return err, ""
	}
	return bad, id
}

// fencedHost describes a host that is not back after a fencing, or a key of a fencing that is left.
func (w *world) fencedHost() (bad, about string) {
	if err := each(w, shared.Nodes(), func(key string, n shared.Node) {
		if n.State != shared.NodeReady || len(n.Quarantined) > 0 {
			bad = fmt.Sprintf("the key %s shows the state %s and quarantined %v", key, n.State, n.Quarantined)
		}
	}); err != "" {
		return err, ""
	}
	if err := each(w, shared.AllWanted(), func(key string, _ shared.Wanted) {
		id, node, _ := shared.WantedIDs(key)
		a := w.hostOf(node).agent.Load()
		if a == nil {
			return
		}
		if r, _ := a.records.Volume(id); len(r.Claims) == 0 {
			bad, about = "the key "+key+" is left", id
		}
	}); err != "" {
		return err, ""
	}
	return bad, about
}

// each calls fn for each key of a span.
func each[T any](w *world, span shared.Span, fn func(key string, v T)) string {
	page, err := w.store.Range(context.Background(), span, 0, 0)
	if err != nil {
		return err.Error()
	}
	for _, kv := range page.KVs {
		e, err := shared.Decode[T](kv)
		if err != nil {
			return err.Error()
		}
		fn(kv.Key, e.Value)
	}
	return ""
}
