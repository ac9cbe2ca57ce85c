package simulation_test

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the times of a move. They are shorter than the way to rest.
const (
	answerWithin = 5 * time.Second
	reserveFor   = 10 * time.Second
)

// noOwners knows no owners, because the claims have none.
type noOwners struct{}

// Gone implements volume.Owners.
func (noOwners) Gone(volume.Owner) bool { return false }

// View implements volume.Owners.
func (noOwners) View(volume.Owner) volume.OwnerView { return volume.OwnerView{} }

// Check implements drain.Owners.
func (noOwners) Check(context.Context, []volume.Owner) {}

// accepts decides whether the host accepts a volume that is moved to it, as package agent does.
func (a *agent) accepts(_ context.Context, v volume.Volume) (claimed bool, err error) {
	r, known := a.records.Volume(v.ID)
	switch {
	case a.records.Draining():
		return false, volume.Errorf(volume.ErrRefused, "it is draining")
	case !known || !r.Held():
		return false, nil
	}
	for _, c := range r.Claims {
		if c.Wanted {
			return true, nil
		}
	}
	return false, volume.Errorf(volume.ErrRefused, "an earlier use of the volume there has not ended")
}

// move lets a person move a random volume to a random host. In half of the moves, a claim waits there.
func (r *run) move() {
	w := r.w
	by, to, v := w.hosts[r.rng.IntN(len(w.hosts))], w.hosts[r.rng.IntN(len(w.hosts))], w.volumes[r.rng.IntN(len(w.volumes))]
	within := r.span(2*time.Second, 30*time.Second)
	a, target := by.agent.Load(), to.agent.Load()
	if a == nil {
		return
	}
	if r.rng.IntN(2) == 0 && target != nil {
		req := volume.Request{Alloc: "moved"}
		req.Mode = v.Capabilities[0]
		target.running.Go(func() { _, _, _ = target.claims.Claim(target.ctx, v.ID, req, 0) })
	}

	w.count("move")
	w.note(by.name, v.ID, "move to %s within %s", to.name, within)
	r.pending.Go(func() {
		ctx, cancel := context.WithCancel(a.ctx)
		defer cancel()
		defer context.AfterFunc(r.calm, cancel)()
		moved, err := a.moves.Move(ctx, v.ID, to.name, within)
		w.note(by.name, v.ID, "move ends: %+v, %v", moved, err)
		if err == nil {
			w.count("volume moved")
		}
	})
}

// drain lets a person drain a random host, and use it again later.
func (r *run) drain() {
	d, kills := r.span(time.Second, time.Minute), r.rng.IntN(3) == 0
	r.onHost("host drained", func(h *host) {
		a := h.agent.Load()
		if kills {
			r.pending.Go(func() { r.last(d / 4); h.kill(); h.start() })
		}
		if a != nil {
			left, err := a.drainer.Drain(a.ctx, d)
			if err == nil && left.Empty() && h.agent.Load() == a && a.holds.Usable() == nil {
				r.w.count("host empty after its drain")
				r.w.judge.drained(h)
			}
		}
		r.last(d / 2)
		for h.undrain() != nil && !r.w.ended.Load() {
			time.Sleep(time.Second)
		}
	})
}

// undrain ends the drain of a host.
func (h *host) undrain() error {
	a := h.agent.Load()
	if a == nil {
		return errDead
	}
	h.w.san.mu.Lock()
	h.empty = false
	h.w.san.mu.Unlock()
	_, err := a.drainer.Undrain(a.ctx)
	return err
}

// drained checks that nothing of a volume is on a host after its drain. Nothing may be mounted until the host is
// used again.
func (j *judge) drained(h *host) {
	j.w.san.mu.Lock()
	defer j.w.san.mu.Unlock()
	h.empty = true
	for path := range h.mounts {
		j.w.breaks(path[len(path)-3:], "the drain of %s has ended, and %s is mounted", h.name, path)
	}
	if j.w.restored.Load() || h.outdated.Load() {
		return // the store may show holds that the host has given up, or that old records do not explain yet
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for at := range j.holds {
		if at.host == h.name {
			j.w.breaks(at.volume, "the drain of %s has ended, and the host has a hold on %s", h.name, at.volume)
		}
	}
}

// moves returns the moves of the volumes for which a transaction writes holds.
func (j *judge) moves(t shared.Txn) map[string]shared.Move {
	found := map[string]shared.Move{}
	for _, op := range t.Then {
		_, id, ok := shared.HoldIDs(op.Key)
		if !ok || op.Kind != shared.OpPut || !shared.Holds().Contains(op.Key) {
			continue
		}
		page, err := j.w.store.Range(context.Background(), shared.Span{Key: shared.MoveKey(id)}, 1, 0)
		if err != nil || len(page.KVs) == 0 {
			continue
		}
		if e, err := shared.Decode[shared.Move](page.KVs[0]); err == nil {
			found[id] = e.Value
		}
	}
	return found
}

// reserved checks that no host gets a volume that a move has reserved for another host.
func (j *judge) reserved(at holder, op shared.Op, m shared.Move) {
	if j.w.restored.Load() {
		return // a host may write the hold of a volume that it uses
	}
	e, _ := shared.Decode[shared.Hold](shared.KV{Mod: 1, Value: op.Value})
	alone := e.Value.Access != call.MultiNodeMultiWriter && !e.Value.Reader
	if m.State == shared.MoveAccepted && m.To != at.host && alone {
		j.w.breaks(at.volume, "%s gets the volume %s, which is reserved for %s", at.host, at.volume, m.To)
	}
}

// restore makes a backup of the store, or restores the last one. A restore begins a new epoch and suspends the
// cluster, as "volctl cluster restore" does.
func (r *run) restore() {
	w := r.w
	if w.restored.Load() || r.rng.IntN(2) == 0 {
		w.count("backup of the store")
		r.backup = w.server.Backup()
		return
	}

	w.restored.Store(true)
	backup, d := r.backup, r.span(5*time.Second, 30*time.Second)
	w.count("fault: restore of the store")
	w.note("driver", "", "fault: restore of the store")
	set := func(on bool) { w.mu.Lock(); defer w.mu.Unlock(); w.restoring = on }
	set(true)
	r.pending.Go(func() {
		time.Sleep(d) // answers of the old store do not arrive any more
		w.judge.restore(func() { w.server.Restore(backup) })
		set(false)
		w.note("driver", "", "the store is restored")
	})
}

// restore restores the store, marks the cluster, and forgets the sightings in the old store.
func (j *judge) restore(do func()) {
	j.txn.Lock()
	defer j.txn.Unlock()
	w := j.w
	do()
	w.epochs.Add(1)
	w.changeMeta(func(m *shared.Meta) {
		m.Epoch, m.EpochTail = max(m.Epoch+1, time.Now().Unix()), fmt.Sprint(w.epochs.Load())
		m.Suspended, m.WentBack = "restored", ""
	})

	holds, calls := map[holder]int64{}, map[string]shared.Call{}
	span := func(s shared.Span, fn func(kv shared.KV)) {
		page, _ := w.store.Range(context.Background(), s, 0, 0)
		for _, kv := range page.KVs {
			fn(kv)
		}
	}
	span(shared.Holds(), func(kv shared.KV) {
		node, id, _ := shared.HoldIDs(kv.Key)
		holds[holder{node, id}] = kv.Create
	})
	span(shared.Calls(), func(kv shared.KV) {
		id, _ := shared.LastID(kv.Key)
		e, _ := shared.Decode[shared.Call](kv)
		calls[id] = e.Value
	})
	j.mu.Lock()
	j.holds, j.calls = holds, calls
	j.mu.Unlock()
	w.san.mu.Lock()
	defer w.san.mu.Unlock()
	for one := range w.san.calls {
		one.late = true // the new store does not know of the call
	}
}

// meta reads the description of the cluster.
func (w *world) meta() (e shared.Entry[shared.Meta], err error) {
	page, err := w.store.Range(context.Background(), shared.Span{Key: shared.MetaKey}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return e, err
	}
	return shared.Decode[shared.Meta](page.KVs[0])
}

// changeMeta changes the description of the cluster.
func (w *world) changeMeta(change func(m *shared.Meta)) {
	e, err := w.meta()
	if err != nil || !e.Exists() {
		return
	}
	m := e.Value
	change(&m)
	_, _ = w.store.Do(context.Background(), shared.Txn{If: []shared.Compare{shared.Unchanged(e.KV)}, Then: []shared.Op{e.Put(m)}})
}

// decide lets a person resume a suspended cluster as soon as all hosts have registered. If several hosts use a
// volume against its mode, the person detaches the claims of all hosts but the holder.
func (r *run) decide() {
	w := r.w
	acts := false
	if e, err := w.meta(); err == nil && e.Value.Suspended != "" && len(w.missing(e.Value)) == 0 {
		w.changeMeta(func(m *shared.Meta) { m.Suspended = "" })
		w.note("person", "", "the cluster is resumed")
		acts = true
	}
	_ = each(w, shared.Uses(), func(key string, u shared.Use) {
		id, _ := shared.LastID(key)
		for _, rival := range u.Rivals {
			a := w.hostOf(rival.Host).agent.Load()
			if a == nil {
				continue
			}
			record, _ := a.records.Volume(id)
			for _, c := range record.Ordered() {
				if !c.Wanted {
					continue
				}
				w.count("claim of a rival detached")
				w.note("person", id, "detaches the claim %s on %s", c.Alloc, rival.Host)
				_ = a.claims.Detach(a.ctx, id, c.Alloc, false, 0)
				acts = true
			}
		}
	})
	if acts {
		w.mu.Lock()
		w.lastOff = time.Now()
		w.mu.Unlock()
	}
}

// missing returns the hosts that have not registered since the last restore.
func (w *world) missing(m shared.Meta) []string {
	nodes := map[string]shared.Node{}
	_ = each(w, shared.Nodes(), func(key string, n shared.Node) {
		name, _ := shared.LastID(key)
		nodes[name] = n
	})
	return shared.Missing(m, nodes)
}

// undecided describes the next command of a person after a restore, or returns "".
func (w *world) undecided() (bad, id string) {
	e, err := w.meta()
	if err != nil {
		return err.Error(), ""
	}
	if e.Value.Suspended != "" {
		return fmt.Sprintf("the cluster is suspended, and these hosts are missing: %v", w.missing(e.Value)), ""
	}
	_ = each(w, shared.Uses(), func(key string, u shared.Use) {
		if len(u.Rivals) > 0 {
			bad = fmt.Sprintf("volume %s has rivals: %+v", key, u)
			id, _ = shared.LastID(key)
		}
	})
	return bad, id
}
