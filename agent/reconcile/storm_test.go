package reconcile_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/volmgr/volume"
)

// rule names what a step would break in the world as it is; mu is held.
func (s *storm) rule(r volume.Record, a volume.Action) string {
	id := r.Volume.ID
	switch a.Kind {
	case volume.Bind:
		if p := s.mounts[targetOf(id, a.Alloc)]; p.id == 0 || p.dead || p.bare {
			return "the target is not mounted"
		}
	case volume.Free:
		if c := r.Claims[a.Alloc]; s.mounts[c.Target].id != 0 && !watching(r, c.Target) || c.At != "" && s.mounts[c.At].id != 0 {
			return "it is still mounted"
		}
	case volume.NodeStage:
		if s.attach && !s.done["attached "+id] {
			return "it is not attached"
		}
		if a.Path != stagingOf(id) {
			return "the staging path is another: " + a.Path
		}
	case volume.NodePublish:
		if s.attach && !s.done["attached "+id] {
			return "it is not attached"
		}
		if s.stage && r.Node.Staged != volume.Present {
			return "the record says that it is not staged"
		}
		if a.Path != targetOf(id, a.Alloc) {
			return "the target is another: " + a.Path
		}
	case volume.NodeUnstage:
		if left := s.under(id, true); len(left) > 0 {
			return fmt.Sprint("it is still published at ", left)
		}
	case volume.ControllerUnpublish:
		if left := s.under(id, false); len(left) > 0 || s.done["staged "+id] {
			return fmt.Sprint("it is still mounted at ", left)
		}
		if s.pending[id] > 0 {
			return "a call may still mount it"
		}
	}
	return ""
}

func watching(r volume.Record, path string) bool {
	return slices.ContainsFunc(r.Node.Watches, func(w volume.Watch) bool { return w.Path == path })
}

// forgotten names something that is there and that neither a record nor a debt
// knows of.
func (s *storm) forgotten(ids, allocs []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		owed, _ := volume.Loaded(s.debts[id]) // a call may have been in flight
		known := []volume.Record{s.mem[id], owed}
		knows := func(test func(volume.Record) bool) bool { return slices.ContainsFunc(known, test) }
		if s.done["attached "+id] && !knows(func(r volume.Record) bool { return r.Node.Attached != volume.Absent }) {
			return fmt.Sprintf("the attachment of %q", id)
		}
		if s.mounts[stagingOf(id)].id != 0 && !knows(func(r volume.Record) bool {
			return r.Node.Staged != volume.Absent || watching(r, stagingOf(id))
		}) {
			return fmt.Sprintf("the staging of %q", id)
		}
		for _, alloc := range allocs {
			path := targetOf(id, alloc)
			if s.mounts[path].id != 0 && !knows(func(r volume.Record) bool {
				c, ok := r.Claims[alloc]
				return ok && c.Published != volume.Absent || watching(r, path)
			}) {
				return fmt.Sprintf("the mount of %q for %q", id, alloc)
			}
		}
	}
	return ""
}

// unsettled names what is not as the claims want it, once nothing goes wrong any
// more.
func (s *storm) unsettled(ids []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	explained := map[string]bool{}
	for _, id := range ids {
		r := s.mem[id]
		for alloc, c := range r.Claims {
			explained[c.Target], explained[c.At] = true, true
			t, b := s.mounts[c.Target], s.mounts[c.At]
			switch {
			case !c.Wanted:
				return fmt.Sprintf("the claim of %q on %q is not gone: %+v", alloc, id, c)
			case c.State != volume.Taken:
				return fmt.Sprintf("the claim of %q on %q is %s", alloc, id, c.State)
			case t.id == 0 || t.dead || t.bare || c.Mount == nil || c.Mount.ID != t.id:
				return fmt.Sprintf("the claim of %q on %q is taken, and mounted is %+v", alloc, id, t)
			case c.At != "" && (b.id == 0 || b.dead || c.BoundMount == nil || c.BoundMount.ID != b.id):
				return fmt.Sprintf("the claim of %q on %q is taken, and bound is %+v", alloc, id, b)
			}
		}
		held := len(r.Claims) > 0
		if explained[stagingOf(id)] = held; !held && r.Held() {
			return fmt.Sprintf("nobody claims %q, and it is held: %+v", id, r.Node)
		}
		if !held && (s.done["attached "+id] || s.done["staged "+id]) || held && s.attach && !s.done["attached "+id] {
			return fmt.Sprintf("%q is claimed: %v, attached: %v, staged: %v", id, held, s.done["attached "+id], s.done["staged "+id])
		}
	}
	for path := range s.mounts {
		if !explained[path] {
			return fmt.Sprintf("%s is left mounted", path)
		}
	}
	return ""
}

// deed is something that happens, to volume and alloc where it concerns one.
type deed struct {
	What          string
	Volume, Alloc string
	N             int
	Then          time.Duration // passes afterwards
}

// host runs agents, one after the other, on a storm.
type stormHost struct {
	*storm
	q *reconcile.Queue
}

var (
	stormVolumes = []string{"v", "w"}
	stormAllocs  = []string{"a", "b", "c"}
)

// begin starts an agent from what is on disk.
func (h *stormHost) begin() {
	h.mu.Lock()
	h.agent++
	h.mem = map[string]volume.Record{}
	for id, r := range h.disk {
		r.Node.Proven = false // it is not stored
		h.mem[id], _ = volume.Loaded(r)
	}
	s := session{h.storm, h.agent}
	h.mu.Unlock()
	h.q = reconcile.New(reconcile.Options{Store: s, Plugins: h.storm, Host: s, Events: func([]volume.Event) {}, Log: hclog.NewNullLogger()})
	h.q.Start()
}

// crash ends the agent; what it still does has no effect on its records.
func (h *stormHost) crash() {
	h.mu.Lock()
	h.agent++
	h.mu.Unlock()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	h.q.Stop(gone)
}

// plugin has the plugin die or come back.
func (h *stormHost) plugin(ready bool) {
	h.mu.Lock()
	if h.ready && !ready {
		h.life++
	}
	h.ready = ready
	h.mu.Unlock()
	h.q.PluginChanged("p")
}

// change is an intent: on disk or not at all.
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
		req := volume.Request{Alloc: alloc, StagingPath: stagingOf(id), Target: targetOf(id, alloc)}
		if h.bind && alloc == "a" {
			req.At = "/at/" + id
		}
		info := volume.PluginInfo{ID: "p", NodeID: "n", Caps: volume.Caps{Attach: h.attach, Stage: h.stage}}
		return volume.Admit(r, req, info, time.Now())
	})
}

// force deregisters a volume, and register brings it back with what is owed.
func (h *stormHost) force(id string) {
	h.mu.Lock()
	r, ok := h.mem[id]
	if ok && volume.Droppable(r) == nil && h.commit() == nil {
		delete(h.mem, id)
		delete(h.disk, id)
		h.debts[id] = r
	} else {
		ok = false
	}
	h.mu.Unlock()
	if ok {
		h.q.Forget(id)
	}
}

func stormVolume(id string) volume.Volume {
	return volume.Volume{ID: id, PluginID: "p", Driver: "d", ExternalID: "ext-" + id, RegisteredAt: time.Now(), Capabilities: []volume.Capability{{
		Access: volume.SingleNodeMultiWriter, Attachment: volume.FileSystem,
	}}}
}

func (h *stormHost) register(id string) {
	h.mu.Lock()
	if _, ok := h.mem[id]; ok {
		h.mu.Unlock()
		return
	}
	r := volume.Record{Volume: stormVolume(id)}
	if debt, ok := h.debts[id]; ok {
		debt.Node.Proven = false
		debt, _ = volume.Loaded(debt)
		r.Node, r.Claims = debt.Node, debt.Claims
		delete(h.debts, id)
	}
	h.mem[id], h.disk[id] = r, r
	h.mu.Unlock()
	h.q.Wake(id)
}

// look is somebody's look at a volume's status.
func (h *stormHost) look(id string) {
	if r, ok := (session{h.storm, h.agent}).Volume(id); ok {
		h.q.Look(context.Background(), r)
	}
}

// stop ends the agent in good order.
func (h *stormHost) stop(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	h.q.Stop(ctx)
}

// reboot takes everything away but the attachments.
func (h *stormHost) reboot() {
	h.crash()
	h.mu.Lock()
	h.boots++
	h.life++
	clear(h.mounts)
	for _, id := range stormVolumes {
		h.done["staged "+id] = false
	}
	h.mu.Unlock()
	h.begin()
}

// touch changes the mount at one of a volume's paths, if there is one.
func (h *stormHost) touch(d deed, change func(path string, p piece)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	path := []string{stagingOf(d.Volume), targetOf(d.Volume, d.Alloc)}[d.N%2]
	if p := h.mounts[path]; p.id != 0 {
		change(path, p)
	}
}

var deeds = map[string]func(*stormHost, deed){
	"claim": func(h *stormHost, d deed) { h.claim(d.Volume, d.Alloc) },
	"release": func(h *stormHost, d deed) {
		h.change(d.Volume, func(r volume.Record) (volume.Record, error) { return volume.Release(r, d.Alloc) })
	},
	"force":             func(h *stormHost, d deed) { h.force(d.Volume) },
	"register":          func(h *stormHost, d deed) { h.register(d.Volume) },
	"look":              func(h *stormHost, d deed) { h.look(d.Volume) },
	"kill the agent":    func(h *stormHost, _ deed) { h.crash(); h.begin() },
	"stop the agent":    func(h *stormHost, d deed) { h.stop(time.Duration(d.N) * time.Second); h.begin() },
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
	"commits fail": func(h *stormHost, d deed) { h.mu.Lock(); h.commits = d.N; h.mu.Unlock() },
}

// often are the deeds that the others are to meet.
var often = []string{"claim", "claim", "claim", "claim", "claim", "claim", "release", "release", "release", "release", "plugin comes back", "register"}

// run does all deeds, and then lets everything come to rest. It returns what was
// not as it must be.
func (h *stormHost) run(all []deed) string {
	for _, id := range stormVolumes {
		r := volume.Record{Volume: stormVolume(id)}
		h.disk[id] = r
	}
	h.begin()
	defer func() { h.crash() }()
	for i, d := range all {
		deeds[d.What](h, d)
		time.Sleep(d.Then)
		synctest.Wait()
		if bad := h.wrong(); bad != "" {
			return fmt.Sprintf("after deed %d (%s): %s", i, d.What, bad)
		}
	}
	return h.calm()
}

func (h *stormHost) wrong() string {
	if lost := h.forgotten(stormVolumes, stormAllocs); lost != "" {
		return "nobody knows of " + lost
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.broken
}

// calm ends all faults, and judges what becomes of the volumes.
func (h *stormHost) calm() string {
	h.mu.Lock()
	h.fates, h.commits = nil, 0
	for path, p := range h.mounts {
		p.hung = false
		h.mounts[path] = p
	}
	before := len(h.steps)
	h.mu.Unlock()
	h.plugin(true)
	for range 2 { // what nobody gives a sign of is found by a look
		for _, id := range stormVolumes {
			h.register(id)
			h.look(id)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	}
	if bad := h.wrong(); bad != "" {
		return "once faults stopped: " + bad
	}
	if bad := h.unsettled(stormVolumes); bad != "" {
		return "a minute after the last fault " + bad
	}
	h.mu.Lock()
	looks, steps := h.looks, len(h.steps)
	h.mu.Unlock()
	if n := steps - before; n > 100 {
		return fmt.Sprintf("it took %d steps to come to rest", n)
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	if h.looks != looks || len(h.steps) != steps {
		return fmt.Sprintf("in an hour of rest it looked %d times and did %q", h.looks-looks, h.steps[steps:])
	}
	return ""
}

// TestStorm: whatever goes wrong in whatever order with claims, calls, mounts,
// commits, the plugin and the agent, no rule of CSI is broken, nothing that is
// there is forgotten, and once the faults stop everything is as the claims want
// it within minutes, and at rest. The time is that of the bubble.
func TestStorm(t *testing.T) {
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	steps := 0
	for range rounds { // of as many runs as rapid makes, 100 by default
		rapid.Check(t, func(rt *rapid.T) { steps += stormy(t, rt) })
	}
	t.Logf("%d steps", steps)
}

func stormy(t *testing.T, rt *rapid.T) (steps int) {
	all := rapid.SliceOfN(rapid.Custom(anyDeed), 1, 60).Draw(rt, "deeds")
	some := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, int(fates)-1), func(n int) fate { return fate(n) }), 0, 100).Draw(rt, "fates")
	attach, stage, bind := rapid.Bool().Draw(rt, "attach"), rapid.Bool().Draw(rt, "stage"), rapid.Bool().Draw(rt, "bind")
	var bad string
	var did []string
	synctest.Test(t, func(*testing.T) {
		h := &stormHost{storm: newStorm(attach, stage, bind, some)}
		bad = h.run(all)
		did = h.steps
	})
	if bad != "" {
		rt.Fatalf("%s\nsteps:\n  %s", bad, strings.Join(did, "\n  "))
	}
	return len(did)
}

func anyDeed(t *rapid.T) deed {
	what := append(slices.Sorted(maps.Keys(deeds)), often...)
	then := []time.Duration{time.Millisecond, 30 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second, time.Minute}
	return deed{
		What:   rapid.SampledFrom(what).Draw(t, "what"),
		Volume: rapid.SampledFrom(stormVolumes).Draw(t, "volume"), Alloc: rapid.SampledFrom(stormAllocs).Draw(t, "alloc"),
		N: rapid.IntRange(0, 3).Draw(t, "n"), Then: rapid.SampledFrom(then).Draw(t, "then"),
	}
}
