package reconcile_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/volagent/volagent/volmgr/volume"
)

// likely lists the possible fates of a call. A third of the entries are successes.
var likely = []fate{goes, goes, goes, goes, goes, refused, final, failed, failedDone, failedLater, failedLater, expired, expiredLater, expiredLater, lied}

// often lists the actions that a storm repeats frequently, so that they coincide with other
// actions.
var often = []string{"claim", "claim", "claim", "claim", "claim", "claim", "release", "release", "release", "release", "plugin comes back", "register", "expand", "expand", "expand"}

// run performs all actions and then waits until the queue has no work. It returns a description of
// the first problem.
func (h *stormHost) run(all []deed) string {
	for _, id := range stormVolumes {
		r := volume.Record{Volume: stormVolume(id, h.shared)}
		h.disk[id] = r
	}
	h.begin(volume.Crashed)
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

// calm ends all faults and checks the final state of the volumes.
func (h *stormHost) calm() string {
	h.mu.Lock()
	h.fates, h.commits = nil, 0
	for path, p := range h.mounts {
		p.hung = false
		h.mounts[path] = p
	}
	before := len(h.steps)
	for id, k := range h.keys {
		if k.holder == anotherHost {
			h.put(id, free)
		}
	}
	h.mu.Unlock()
	h.answer()
	h.plugin(true)
	for _, id := range stormVolumes { // a status request finds changes for which no signal was sent
		h.register(id)
		h.look(id)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
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

// TestStorm checks the queue under random claims and random faults of calls, mounts, commits, the
// plugin and the agent. The agent must not break a rule of CSI, and must not forget a mount or
// attachment on the host. Within minutes after the last fault, every volume must match its claims,
// and the queue must be idle. The test uses the fake time of synctest.
func TestStorm(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	seed := flag.Lookup("rapid.seed").Value.String()
	defer func() { _ = flag.Set("rapid.seed", seed) }()
	runs, steps := 0, 0
	for i := range rounds { // rapid repeats each round 100 times by default
		// Use the same seeds in each run, so that only a change of the code can cause a new
		// failure. To test other sequences, set another seed or a larger -rapid.checks.
		if seed == "0" {
			if err := flag.Set("rapid.seed", strconv.Itoa(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		for _, length := range [][2]int{{1, 12}, {20, 40}} {
			rapid.Check(t, func(rt *rapid.T) {
				runs++
				steps += stormy(t, rt, length[0], length[1])
			})
		}
	}
	t.Logf("%d runs with %d steps", runs, steps)
}

func stormy(t *testing.T, rt *rapid.T, least, most int) (steps int) {
	all := rapid.SliceOfN(rapid.Custom(anyDeed), least, most).Draw(rt, "deeds")
	some := rapid.SliceOfN(rapid.SampledFrom(likely), 0, 2*most).Draw(rt, "fates")
	attach, stage, bind := rapid.Bool().Draw(rt, "attach"), rapid.Bool().Draw(rt, "stage"), rapid.Bool().Draw(rt, "bind")
	grows, offline := rapid.Bool().Draw(rt, "grows"), rapid.Bool().Draw(rt, "offline")
	shared := rapid.Bool().Draw(rt, "shared")
	var bad string
	var did []string
	synctest.Test(t, func(*testing.T) {
		h := &stormHost{storm: newStorm(attach, stage, bind, some)}
		h.grows, h.offline = grows && !shared, offline // the requester expands the storage of a shared volume
		h.shared = shared
		bad = h.run(all)
		did = h.steps
	})
	if bad != "" {
		rt.Fatalf("%s\nsteps:\n  %s", bad, strings.Join(did, "\n  "))
	}
	return len(did)
}

func anyDeed(t *rapid.T) deed {
	what := slices.Concat([]string{"nothing"}, often, slices.Sorted(maps.Keys(deeds)))
	then := []time.Duration{time.Millisecond, 30 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second, 12 * time.Second}
	return deed{
		What:   rapid.SampledFrom(what).Draw(t, "what"),
		Volume: rapid.SampledFrom(stormVolumes).Draw(t, "volume"), Alloc: rapid.SampledFrom(stormAllocs).Draw(t, "alloc"),
		N: rapid.IntRange(0, 3).Draw(t, "n"), Then: rapid.SampledFrom(then).Draw(t, "then"),
	}
}

// TestStormsBefore repeats storms that caused failures in the past.
func TestStormsBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		attach, stage, bind bool
		fates               []fate
		deeds               []deed
	}{
		"the bind died, and the target was unmounted by somebody": {bind: true, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: time.Second},
			{What: "somebody unmounts", Volume: "v", Alloc: "a", N: 1, Then: time.Millisecond},
			{What: "plugin dies with its mounts", Then: time.Millisecond},
		}},
		"that a mount was undone could not be saved, another was made, and the agent died": {stage: true, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "b", Then: time.Second},
			{What: "somebody unmounts", Volume: "v", Then: time.Millisecond},
			{What: "plugin dies with its mounts", Then: time.Millisecond},
			{What: "commits fail", N: 1, Then: time.Millisecond},
			{What: "plugin comes back", Then: 3 * time.Second},
			{What: "kill the agent", Then: 3 * time.Second},
		}},
		"a proof of unmount could not be saved, the volume was detached, and the agent died": {attach: true, deeds: []deed{
			{What: "claim", Volume: "w", Alloc: "c", Then: 30 * time.Millisecond},
			{What: "release", Volume: "w", Alloc: "c", Then: time.Millisecond},
			{What: "commits fail", N: 2, Then: 30 * time.Millisecond},
			{What: "kill the agent", Then: time.Millisecond},
			{What: "claim", Volume: "w", Alloc: "a", Then: time.Millisecond},
		}},
		"deregistered by force and registered again, and the agent died": {attach: true, stage: true, fates: []fate{goes, goes, goes, failed, failed, failed, failed}, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: time.Second},
			{What: "release", Volume: "v", Alloc: "a", Then: 500 * time.Millisecond},
			{What: "force", Volume: "v", Then: time.Millisecond},
			{What: "register", Volume: "v", Then: time.Millisecond},
			{What: "claim", Volume: "v", Alloc: "b", Then: time.Millisecond},
			{What: "kill the agent", Then: time.Millisecond},
			{What: "release", Volume: "v", Alloc: "b", Then: 3 * time.Second},
		}},
		"an agent died in an unstage that took long": {stage: true, fates: []fate{goes, goes, goes, expiredLater}, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: time.Second},
			{What: "release", Volume: "v", Alloc: "a", Then: 500 * time.Millisecond},
			{What: "claim", Volume: "v", Alloc: "b", Then: time.Millisecond},
			{What: "kill the agent", Then: 12 * time.Second},
		}},
		"a detach took long": {attach: true, fates: []fate{goes, goes, goes, expiredLater}, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: time.Second},
			{What: "release", Volume: "v", Alloc: "a", Then: 3 * time.Second},
			{What: "claim", Volume: "v", Alloc: "b", Then: 12 * time.Second},
		}},
		"an agent died in a detach that took long, and the plugin after it": {attach: true, fates: []fate{goes, goes, goes, expiredLater}, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: time.Second},
			{What: "release", Volume: "v", Alloc: "a", Then: 500 * time.Millisecond},
			{What: "claim", Volume: "v", Alloc: "b", Then: time.Millisecond},
			{What: "kill the agent", Then: time.Millisecond},
			{What: "plugin dies", Then: time.Millisecond},
			{What: "plugin comes back", Then: 12 * time.Second},
		}},
		"an attach took long, and its claim was released": {attach: true, fates: []fate{expiredLater}, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: 30 * time.Millisecond},
			{What: "release", Volume: "v", Alloc: "a", Then: 12 * time.Second},
		}},
		"an agent died in an unpublish that took long": {fates: []fate{goes, expiredLater}, deeds: []deed{
			{What: "claim", Volume: "v", Alloc: "a", Then: time.Second},
			{What: "release", Volume: "v", Alloc: "a", Then: time.Millisecond},
			{What: "kill the agent", Then: 500 * time.Millisecond},
			{What: "claim", Volume: "v", Alloc: "a", Then: 3 * time.Second},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &stormHost{storm: newStorm(tt.attach, tt.stage, tt.bind, tt.fates)}
				if bad := h.run(tt.deeds); bad != "" {
					t.Errorf("%s\nsteps:\n  %s", bad, strings.Join(h.steps, "\n  "))
				}
			})
		})
	}
}
