package reconcile_test

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// deed is one action of a storm, such as a claim or a crash. Only some actions use Volume and
// Alloc.
type deed struct {
	What          string
	Volume, Alloc string
	N             int
	Then          time.Duration // the pause after the action
}

// stormHost is the host of a storm. Its agents run one after another.
type stormHost struct {
	*storm
	q *reconcile.Queue
}

var (
	stormVolumes = []string{"v", "w"}
	stormAllocs  = []string{"a", "b", "c"}
)

// begin starts an agent that reads the records on the simulated disk.
func (h *stormHost) begin(after volume.Stop) {
	h.mu.Lock()
	h.agent++
	h.mem = map[string]volume.Record{}
	for key, r := range h.disk {
		_, blocked := h.disk[leftoverKeyOf(r)]
		r, _ = volume.Loaded(r, after, blocked && !r.Leftover)
		if r.Leftover && after.Boot() {
			r = volume.NextBoot(r)
		}
		h.mem[key] = r
	}
	h.disk = maps.Clone(h.mem) // the agent stores the records with the boot id before its first step
	s, silent := session{h.storm, h.agent}, h.silent
	h.mu.Unlock()
	h.q = reconcile.New(reconcile.Options{
		Store: s, Plugins: h.storm, Host: s, Events: func([]volume.Event) {}, Log: hclog.NewNullLogger(),
		Crashed: after == volume.Crashed, Blocked: s.blocked, Undone: h.undone, Cluster: s.cluster,
	})
	h.q.Start()
	if h.shared && !silent {
		h.answer()
	}
}

// crash ends the agent. Steps that are still running can no longer change the agent's records.
func (h *stormHost) crash() {
	h.mu.Lock()
	h.agent++
	h.mu.Unlock()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	h.q.Stop(gone)
}

// plugin starts the plugin if ready is true, and stops it otherwise.
func (h *stormHost) plugin(ready bool) {
	h.mu.Lock()
	if h.ready && !ready {
		h.life++
	}
	h.ready = ready
	h.mu.Unlock()
	h.q.PluginChanged("p")
}

// change stores an intent. If the intent cannot be written to disk, the record stays unchanged.
func (h *stormHost) change(id string, fn func(volume.Record) (volume.Record, error)) {
	h.mu.Lock()
	r, ok := h.mem[id]
	if !ok {
		h.mu.Unlock()
		return
	}
	next, err := fn(r)
	if err == nil && h.commit() == nil {
		h.mem[id], h.disk[id] = next, next
	}
	h.mu.Unlock()
	h.q.Wake(id)
}

func (h *stormHost) claim(id, alloc string) {
	h.change(id, func(r volume.Record) (volume.Record, error) {
		h.names++
		req := volume.Request{Alloc: alloc, StagingPath: stagingOf(id), Target: targetOf(id, alloc), Operation: fmt.Sprint("op", h.names)}
		if h.bind && alloc == "a" {
			req.At = "/at/" + id
		}
		return volume.Admit(r, req, h.info(), time.Now())
	})
}

// leftoverKeyOf returns the key under which a forced deregister of a volume stores a leftover
// record.
func leftoverKeyOf(r volume.Record) string {
	return volume.LeftoverKey(r.Volume.Driver, r.Volume.ExternalID)
}

// blocked describes the pending calls for the storage of a volume. The queue holds its own lock
// while it calls blocked or View.
func (s session) blocked(v volume.Volume) string {
	if _, ok := s.Volume(leftoverKeyOf(volume.Record{Volume: v})); ok {
		return "a debt comes first"
	}
	return ""
}

// undone deletes a leftover record that has no pending calls left. It returns the id of a volume
// that was waiting for the deletion.
func (h *stormHost) undone(r volume.Record) (waiting string) {
	key := r.Key()
	h.mu.Lock()
	now, ok := h.mem[key]
	if ok = ok && !now.Held() && h.commit() == nil; ok {
		delete(h.mem, key)
		delete(h.disk, key)
	}
	h.mu.Unlock()
	if !ok {
		return ""
	}
	return r.Volume.ID
}

// force deregisters a volume by force and stores a leftover record, unless a leftover record of the
// same storage already exists.
func (h *stormHost) force(id string) {
	h.mu.Lock()
	r, ok := h.mem[id]
	if ok = ok && volume.Droppable(r) == nil && h.commit() == nil; ok {
		delete(h.mem, id)
		delete(h.disk, id)
		if _, owed := h.mem[leftoverKeyOf(r)]; r.Held() && !owed {
			debt := volume.LeftoverOf(r)
			h.mem[debt.Key()], h.disk[debt.Key()] = debt, debt
		}
	}
	h.mu.Unlock()
	if ok {
		h.q.Forget(id)
		h.q.Wake(leftoverKeyOf(r))
	}
}

func stormVolume(id string, shared bool) volume.Volume {
	return volume.Volume{ID: id, Shared: shared, PluginID: "p", Driver: "d", ExternalID: "ext-" + id, RegisteredAt: time.Now(), Capabilities: []call.Capability{{
		Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem,
	}}}
}

func (h *stormHost) register(id string) {
	h.mu.Lock()
	if _, ok := h.mem[id]; ok {
		h.mu.Unlock()
		return
	}
	r := volume.Record{Volume: stormVolume(id, h.shared)}
	h.mem[id], h.disk[id] = r, r
	h.mu.Unlock()
	h.q.Wake(id)
}

// look requests the status of a volume.
func (h *stormHost) look(id string) {
	if r, ok := (session{h.storm, h.agent}).Volume(id); ok {
		h.q.Look(context.Background(), r)
	}
}

// restart ends the agent and starts the next one. The shutdown counts as proper only if the agent
// stopped in time and its last commit succeeded.
func (h *stormHost) restart(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	h.q.Stop(ctx)
	after := volume.Crashed
	h.mu.Lock()
	if within > callLimit && h.commit() == nil {
		after = volume.Stopped
	}
	h.mu.Unlock()
	h.begin(after)
}

// reboot removes everything except the attachments.
func (h *stormHost) reboot() {
	h.crash()
	h.mu.Lock()
	h.boots++
	h.life++
	clear(h.mounts)
	for _, id := range stormVolumes {
		h.done["staged "+id] = false
		h.put(id, func(k *poolKey) { k.unseen = false }) // after a boot, the agent verifies its holds
	}
	h.mu.Unlock()
	h.begin(volume.Rebooted)
}

// touch applies a change to the mount at one path of a volume, if this path is mounted.
func (h *stormHost) touch(d deed, change func(path string, p piece)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	path := []string{stagingOf(d.Volume), targetOf(d.Volume, d.Alloc)}[d.N%2]
	if p := h.mounts[path]; p.id != 0 {
		change(path, p)
	}
}

var deeds = map[string]func(*stormHost, deed){
	"nothing": func(*stormHost, deed) {},
	"claim":   func(h *stormHost, d deed) { h.claim(d.Volume, d.Alloc) },
	"release": func(h *stormHost, d deed) {
		h.change(d.Volume, func(r volume.Record) (volume.Record, error) { return volume.Detach(r, d.Alloc) })
	},
	"expand":            func(h *stormHost, d deed) { h.expand(d.Volume, d.N) },
	"force":             func(h *stormHost, d deed) { h.force(d.Volume) },
	"register":          func(h *stormHost, d deed) { h.register(d.Volume) },
	"look":              func(h *stormHost, d deed) { h.look(d.Volume) },
	"kill the agent":    func(h *stormHost, _ deed) { h.crash(); h.begin(volume.Crashed) },
	"stop the agent":    func(h *stormHost, d deed) { h.restart(time.Duration(d.N) * time.Second) },
	"reboot":            func(h *stormHost, _ deed) { h.reboot() },
	"plugin dies":       func(h *stormHost, _ deed) { h.plugin(false) },
	"plugin comes back": func(h *stormHost, _ deed) { h.plugin(true) },
	"plugin dies with its mounts": func(h *stormHost, _ deed) {
		h.mu.Lock()
		for path, p := range h.mounts {
			p.dead = true
			h.mounts[path] = p
		}
		h.mu.Unlock()
		h.plugin(false)
	},
	"somebody unmounts": func(h *stormHost, d deed) {
		h.touch(d, func(path string, _ piece) {
			delete(h.mounts, path)
			if path == stagingOf(d.Volume) {
				h.done["staged "+d.Volume] = false
			}
		})
	},
	"a mount hangs": func(h *stormHost, d deed) {
		h.touch(d, func(path string, p piece) { p.hung = true; h.mounts[path] = p })
	},
	"a mount answers": func(h *stormHost, d deed) {
		h.touch(d, func(path string, p piece) { p.hung = false; h.mounts[path] = p })
	},
	"the store is silent":         func(h *stormHost, _ deed) { h.mu.Lock(); h.silent = h.shared; h.mu.Unlock() },
	"the store answers":           func(h *stormHost, _ deed) { h.answer() },
	"another host comes and goes": func(h *stormHost, d deed) { h.others(d.Volume, false) },
	"the hold is lost":            func(h *stormHost, d deed) { h.others(d.Volume, true) },
	"commits fail":                func(h *stormHost, d deed) { h.mu.Lock(); h.commits = d.N; h.mu.Unlock() },
}
