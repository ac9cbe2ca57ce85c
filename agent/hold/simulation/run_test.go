package simulation_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// restWithin is how long after its limit a claim may wait. It is also the limit of the rest in I4, which
// "make simulate" checks.
const restWithin = 30 * time.Second

// outdatedFlag lets hosts boot with old records. "make simulate" sets it, because it searches for longer.
var outdatedFlag = flag.Bool("simulation.outdated", false, "let hosts also boot with old records")

// oftenFlag makes the boots with old records more frequent. About every second fault is one with 15.
var oftenFlag = flag.Int("simulation.often", 0, "choose the boot with old records also in this `number` of further cases")

// restFlag is how long after the end of all faults and of one deadline the cluster must be at rest. The
// default is longer than the longest pause between two tries of a volume, and between two passes.
var restFlag = flag.Duration("simulation.rest", 6*time.Minute, "the cluster must be at rest this `time` after the last fault")

// run is one run of a world: its clients and its faults.
type run struct {
	w   *world
	rng *rand.Rand // of the driver, which is one goroutine

	busy    map[*host]bool // a fault of the host is in force
	pending sync.WaitGroup // faults that have not ended
	mu      sync.Mutex     // guards busy and waiting
	waiting map[*waiter]bool
	allocs  int
	backup  memory.Backup // of the store
	old     oldBoots
	calm    context.Context // ends when all faults must end
	end     context.CancelFunc
}

// oldBoots says whether hosts boot with old records, and how many more cases of a fault are such boots.
type oldBoots struct {
	on    bool
	often int
}

// waiter is one client that waits for its claim.
type waiter struct {
	host, volume, alloc string
	until               time.Time
}

// newRun returns a run that does nothing yet.
func newRun(w *world, old oldBoots) *run {
	return &run{w: w, old: old, rng: rand.New(rand.NewPCG(w.seed, 1)), busy: map[*host]bool{}, waiting: map[*waiter]bool{}}
}

// span returns a random time between two limits.
func (r *run) span(least, most time.Duration) time.Duration {
	return least + time.Duration(r.rng.Int64N(int64(most-least)))
}

// run lets the world live for a virtual time. It alternates between faults and calm.
func (r *run) run(length time.Duration) {
	w := r.w
	ctx, stop := context.WithCancel(context.Background())
	var clocks sync.WaitGroup
	clocks.Go(func() { w.tick(ctx) })
	for _, h := range w.hosts {
		h.start()
	}
	r.define()
	r.backup = w.server.Backup()
	for w.now() < length && !w.over() {
		r.storm(r.span(time.Minute, 4*time.Minute))
		r.rest()
	}

	w.ended.Store(true)
	for _, h := range w.hosts {
		h.die()
	}
	stop()
	clocks.Wait()
}

// tick advances the clock of the store, and compacts its history.
func (w *world) tick(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		w.server.Advance(time.Second)
		w.virtual.Store(int64(w.now()))
		if n%60 == 0 {
			w.server.Compact(w.server.Revision() - 500)
		}
	}
}

// define adds the volumes to the cluster, as soon as a host is registered.
func (r *run) define() {
	w := r.w
	d := w.hosts[0].agent.Load().holds.Definitions()
	for _, v := range w.volumes {
		for tries := 0; ; tries++ {
			err := d.Define(context.Background(), v)
			if err == nil {
				break
			}
			if tries == 100 {
				w.breaks(v.ID, "cannot define volume %s: %v", v.ID, err)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// storm makes random claims, detaches and faults for a time.
func (r *run) storm(length time.Duration) {
	w := r.w
	r.calm, r.end = context.WithCancel(context.Background())
	w.restored.Store(false)
	for _, h := range w.hosts {
		h.outdated.Store(false)
	}
	w.note("driver", "", "a storm of %s begins", length)
	for end := time.Now().Add(length); time.Now().Before(end) && !w.over(); {
		switch n := r.rng.IntN(100); {
		case n < 50:
			r.claim()
		case n < 85:
			r.detach()
		case n < 88:
			r.move()
		case n < 90:
			r.drain()
		default:
			r.fault()
		}
		time.Sleep(r.span(time.Millisecond, 2*time.Second))
	}
}

// claim lets a client of a random host claim a random volume.
func (r *run) claim() {
	w := r.w
	h, v := w.hosts[r.rng.IntN(len(w.hosts))], w.volumes[r.rng.IntN(len(w.volumes))]
	r.allocs++
	alloc, wait := fmt.Sprintf("a%d", r.allocs%3), time.Duration(0)
	if r.rng.IntN(2) == 0 {
		wait = r.span(time.Second, time.Minute)
	}
	req := volume.Request{Alloc: alloc}
	req.Mode = v.Capabilities[r.rng.IntN(len(v.Capabilities))]
	req.ReadOnly = req.Mode.Access == call.MultiNodeSingleWriter && r.rng.IntN(3) > 0
	a := h.agent.Load()
	if a == nil {
		return
	}

	one := &waiter{h.name, v.ID, alloc, time.Now().Add(wait)}
	r.mu.Lock()
	r.waiting[one] = true
	r.mu.Unlock()
	w.count("claim")
	w.note(h.name, v.ID, "claim of %s, reads %t, waits %s", alloc, req.ReadOnly, wait)
	a.running.Go(func() {
		_, _, err := a.claims.Claim(a.ctx, v.ID, req, wait)
		r.mu.Lock()
		delete(r.waiting, one)
		r.mu.Unlock()
		switch {
		case err == nil && wait > 0:
			w.count("claim served while its client waited")
		case errors.Is(err, volume.ErrTimeout):
			w.count("claim withdrawn after its timeout")
		case err != nil:
			w.count("claim refused")
		}
		w.note(h.name, v.ID, "claim of %s ends: %v", alloc, err)
	})
}

// detach detaches a random claim.
func (r *run) detach() {
	w := r.w
	h := w.hosts[r.rng.IntN(len(w.hosts))]
	a := h.agent.Load()
	if a == nil {
		return
	}
	var found [][2]string
	for _, rec := range a.records.Volumes() {
		for _, c := range rec.Ordered() {
			if c.Wanted {
				found = append(found, [2]string{rec.Volume.ID, c.Alloc})
			}
		}
	}
	if len(found) == 0 {
		return
	}
	one := found[r.rng.IntN(len(found))]
	w.count("detach")
	w.note(h.name, one[0], "detach of %s", one[1])
	a.running.Go(func() { _ = a.claims.Detach(a.ctx, one[0], one[1], false, 0) })
}

// rest ends all faults, and waits until the cluster is at rest.
func (r *run) rest() {
	w := r.w
	r.end()
	w.mu.Lock()
	w.trouble, w.outage = trouble{}, false
	for _, h := range w.hosts {
		h.partitioned = false
	}
	w.mu.Unlock()
	r.pending.Wait() // the end of a fault starts the agents again
	if w.over() {
		return
	}

	w.note("driver", "", "all faults have ended")
	begun := time.Now()
	var bad, id string
	for {
		synctest.Wait()
		w.mu.Lock()
		if w.lastOff.After(begun) {
			begun = w.lastOff // the last fault
		}
		w.mu.Unlock()
		r.decide()
		if bad, id = w.unrest(); bad == "" || time.Since(begun) > controllerDeadline+r.limit() {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	if bad != "" {
		w.breaks(id, "I4: %s after the last fault: %s", time.Since(begun), bad)
		return
	}
	w.mu.Lock()
	w.longest = max(w.longest, time.Since(begun))
	w.mu.Unlock()
	w.count("way to rest")
	r.idle()
}

// limit returns the limit of the rest. If hosts have booted with old records and the store was restored, only the
// lists of the drivers show some attachments. A later pass finds them, and claims that wait for them try again
// after that.
func (r *run) limit() time.Duration {
	for _, h := range r.w.hosts {
		if h.outdated.Load() && r.w.restored.Load() {
			return max(*restFlag, 6*time.Minute)
		}
	}
	return *restFlag
}

// idle lets the cluster rest for a while, and counts its requests. No claim may wait longer than its client.
func (r *run) idle() {
	w := r.w
	time.Sleep(time.Minute)
	before := w.sent.Load()
	time.Sleep(time.Minute)
	synctest.Wait()
	w.mu.Lock()
	w.idle = max(w.idle, w.sent.Load()-before)
	w.mu.Unlock()

	r.mu.Lock()
	defer r.mu.Unlock()
	for one := range r.waiting {
		if time.Since(one.until) > restWithin {
			w.breaks(one.volume, "I8: claim %s of host %s has ended %s ago, and its client still waits", one.alloc, one.host, time.Since(one.until))
		}
	}
	if bad, id := w.unrest(); bad != "" {
		w.breaks(id, "I4: the cluster was at rest, and is not any more: %s", bad)
	}
}

// last lets a fault last for a time. It ends earlier when all faults must end.
func (r *run) last(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.calm.Done():
	}
}

// onHost makes a fault of a host that has no other such fault.
func (r *run) onHost(what string, fn func(h *host)) {
	w := r.w
	h := w.hosts[r.rng.IntN(len(w.hosts))]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[h] || h.agent.Load() == nil {
		return
	}
	r.busy[h] = true
	w.count("fault: " + what)
	w.note(h.name, "", "fault: %s", what)
	r.pending.Go(func() {
		fn(h)
		w.note(h.name, "", "end of fault: %s", what)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, h)
	})
}

// inTime sets a fault of the whole cluster for a time.
func (r *run) inTime(what string, d time.Duration, set func(t *trouble, on bool)) {
	w := r.w
	w.count("fault: " + what)
	w.note("driver", "", "fault: %s", what)
	change := func(on bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		set(&w.trouble, on)
	}
	change(true)
	r.pending.Go(func() {
		r.last(d)
		change(false)
		w.note("driver", "", "end of fault: %s", what)
	})
}

// pick returns 1 if on is set, and otherwise 0.
func pick(on bool, chance float64) float64 {
	if on {
		return chance
	}
	return 0
}

// fault begins a random fault.
func (r *run) fault() {
	outdated := func() {
		d := r.span(time.Second, 2*time.Minute)
		r.onHost("host boots with old records", func(h *host) {
			old := h.image()
			r.last(d)
			h.die()
			if r.old.on {
				h.disk = old
				h.outdated.Store(true)
			}
			h.start()
		})
	}
	all := []func(){
		func() {
			d := r.span(time.Second, 40*time.Second)
			r.onHost("agent killed", func(h *host) { h.kill(); r.last(d); h.start() })
		},
		func() { r.onHost("agent killed and started at once", func(h *host) { h.kill(); h.start() }) },
		func() {
			d := r.span(time.Second, 40*time.Second)
			r.onHost("agent stopped in order", func(h *host) { h.stopInOrder(); r.last(d); h.start() })
		},
		func() {
			d := r.span(time.Second, 90*time.Second)
			r.onHost("agent paused", func(h *host) { h.pause(); r.last(d); h.resume(); h.start() })
		},
		func() {
			d := r.span(time.Second, 3*time.Minute)
			r.onHost("host dies", func(h *host) { h.die(); r.last(d); h.start() })
		},
		outdated,
		func() { r.onHost("host reboots", func(h *host) { h.die(); h.start() }) },
		func() {
			d := r.span(time.Second, 90*time.Second)
			r.onHost("partition", func(h *host) {
				set := func(on bool) { r.w.mu.Lock(); defer r.w.mu.Unlock(); h.partitioned = on }
				set(true)
				r.last(d)
				set(false)
				h.start() // a hook may have switched it off
			})
		},
		func() {
			r.inTime("outage of the store", r.span(time.Second, 40*time.Second), func(_ *trouble, on bool) { r.w.outage = on })
		},
		func() {
			r.inTime("answers of the store lost", r.span(5*time.Second, time.Minute), func(t *trouble, on bool) { t.lost = pick(on, 0.15) })
		},
		func() {
			r.inTime("transactions late", r.span(5*time.Second, time.Minute), func(t *trouble, on bool) { t.late = pick(on, 0.08) })
		},
		func() {
			r.inTime("slow store", r.span(5*time.Second, time.Minute), func(t *trouble, on bool) { t.slow = pick(on, 0.2) })
		},
		func() {
			r.inTime("calls of plugins go wrong", r.span(5*time.Second, time.Minute), func(t *trouble, on bool) { t.calls = pick(on, 0.3) })
		},
		r.restore,
		func() { r.w.count("fault: compaction"); r.w.server.Compact(r.w.server.Revision()) },
	}
	for range r.old.often {
		all = append(all, outdated)
	}
	all[r.rng.IntN(len(all))]()
}
