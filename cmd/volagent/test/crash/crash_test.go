package crash_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Child{Env: crasher.Env, Run: crasher.Main}) }

// These flags control the crash tests.
var (
	crashFull = flag.Bool("crash.full", false, "try every point of every scenario, with each victim")
	crashSeed = flag.Uint64("crash.seed", 1, "choose points at random from this seed, where not all are tried")
)

// victim names the processes that a test kills.
type victim struct {
	name          string
	agent, plugin bool
}

var victims = []victim{
	{name: "agent", agent: true},
	{name: "plugin", plugin: true},
	{name: "both", agent: true, plugin: true},
}

// crashCount counts the scenarios, points, kills and recoveries of a crash test. The field plugins
// counts the kills of a plugin.
type crashCount struct{ scenarios, points, kills, plugins, recoveries atomic.Int64 }

func (c *crashCount) report(t *testing.T) {
	start := time.Now()
	t.Cleanup(func() {
		t.Logf("%d scenarios, %d points, %d kills of an agent, %d of a plugin, %d recoveries in %s (seed %d)", c.scenarios.Load(), c.points.Load(),
			c.kills.Load(), c.plugins.Load(), c.recoveries.Load(), time.Since(start).Round(time.Second/10), *crashSeed)
	})
}

// TestCrash kills the agent, a plugin, or both, before and after each commit of the state database
// and each call to the plugin. If the agent died, the test starts another agent on the same data
// dir. If only the plugin died, the running agent restarts it. Without further requests, the
// records must then agree with the mount table, the directories, the calls to the plugin, the
// plugin's attachments, and the files in the volumes.
func TestCrash(t *testing.T) {
	var count crashCount
	count.report(t)
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			count.scenarios.Add(1)
			points := s.count(t)
			count.points.Add(int64(len(points)))
			for _, v := range victims {
				for _, at := range s.chosen(v, len(points)) {
					t.Run(fmt.Sprintf("%s dies at %d %s", v.name, at, points[at-1]), func(t *testing.T) {
						t.Parallel()
						s.crash(t, v, at, &count)
					})
				}
			}
		})
	}
}

// chosen returns the numbers of the points at which the victim dies, from 1. With -crash.full it
// returns all points. If only the agent dies and the scenario's field every is set, it also returns
// all points. Otherwise it returns two random points for the agent, and one for any other victim.
func (s scenario) chosen(v victim, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	if *crashFull || s.every && v.agent && !v.plugin {
		return all
	}
	some := 1
	if v.agent && !v.plugin {
		some = 2
	}
	r := s.rand(v.name)
	r.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	some = min(some, n)
	slices.Sort(all[:some])
	return all[:some]
}

// rand returns a random number generator that depends only on the seed, the scenario's name and the
// given purpose.
func (s scenario) rand(purpose string) *rand.Rand {
	name := fnv.New64a()
	_, _ = name.Write([]byte(s.name + "\x00" + purpose)) // Write to a hash never fails
	return rand.New(rand.NewPCG(*crashSeed, name.Sum64()))
}

// prepare returns a host on which everything is ready for the scenario's request. The agent of this
// host executes the test's orders.
func (s scenario) prepare(t *testing.T) *crashHost {
	t.Helper()
	h := newCrashHost(t, s.tune)
	h.orphans = s.orphans
	h.launch(true)
	h.Must(h.up())
	s.begin(h)
	return h
}

func (s scenario) begin(h *crashHost) {
	h.T.Helper()
	h.Must(h.registerData())
	h.seed("data")
	if s.before != nil {
		s.before(h)
	}
	// Wait for commits in the background, so that they do not count as points of the request.
	h.Await("all that was told to be on disk", h.onDisk)
}

// count runs the scenario without killing a process, and returns all points that the agent reached.
func (s scenario) count(t *testing.T) (points []string) {
	t.Helper()
	t.Run("nobody dies", func(t *testing.T) {
		h := s.prepare(t)
		kept, pid := h.mountsOf(s.keeps), h.PluginPID("rec")
		mark := h.Mark()
		h.order(crasher.Order{Commits: s.commits})
		h.Must(s.act(h))
		h.Await("all of it to be on disk", h.onDisk)
		h.disarm()
		points = h.points()
		if !s.commits {
			h.atMost(1, mark)
			s.inOrder(t, points)
		}
		if !s.done(h) {
			t.Error("it was not done")
		}
		s.outcome(h, kept, pid)
	})
	if t.Failed() {
		t.FailNow()
	}
	return points
}

// inOrder checks the order of commits and CSI calls in a run without a kill. The agent must store
// the intent before the first call, and the proof of unmount before ControllerUnpublishVolume.
// After the last call it must immediately commit the result.
func (s scenario) inOrder(t *testing.T, points []string) {
	t.Helper()
	if s.atOnce {
		return
	}
	commits := 0
	for _, p := range points {
		least := 1
		if p == "before ControllerUnpublishVolume" {
			least = 2
		}
		if p == "after commit" {
			commits++
		} else if method, call := strings.CutPrefix(p, "before "); call && method != "commit" && commits < least {
			t.Errorf("%s is called after %d commits: %q", method, commits, points)
		}
	}
	if last := points[len(points)-1]; last != "after commit" {
		t.Errorf("the last is %q: %q", last, points)
	}
}

// crash runs the scenario up to the given point, kills the victim, and checks that the agent
// recovers completely.
func (s scenario) crash(t *testing.T, v victim, at int, count *crashCount) {
	h := s.prepare(t)
	kept, pid := h.mountsOf(s.keeps), h.PluginPID("rec")
	o := crasher.Order{At: at, Agent: v.agent, Commits: s.commits}
	if v.plugin {
		o.Plugin = pid
		h.starts++
		count.plugins.Add(1)
	}
	mark := h.Mark()
	h.order(o)
	err := s.act(h)
	if v.agent {
		if !h.dead() {
			t.Fatalf("the agent did not come to this point: %q, %v", h.points(), err)
		}
		count.kills.Add(1)
		h.records()
		h.launch(false)
	} else {
		// The agent may reach the point after its answer, by a commit in the background.
		h.Await("the point", func() bool { return len(h.points()) >= at })
	}
	points := h.points()
	h.disarm()
	h.Await("the plugin", func() bool { return h.pluginStarts() == h.starts })
	h.Must(h.up())
	count.recoveries.Add(1)
	if !v.agent && err != nil && s.binding == 1 {
		t.Errorf("the call failed: %v", err)
	}

	if !s.rough {
		h.settle()
	}
	isDone := s.done(h)
	if bound := committed(points) >= s.binding; v.agent && bound != isDone {
		t.Errorf("it is done: %v; points: %q", isDone, points)
	}
	if v.agent && !v.plugin && !s.commits {
		h.atMost(2, mark) // one call before the kill and one after it
	}
	s.repeat(h, isDone)
	if v.plugin {
		pid = h.PluginPID("rec")
	}
	s.outcome(h, kept, pid)
}

// committed returns the number of completed commits among the given points.
func committed(points []string) (n int) {
	for _, p := range points {
		if p == "after commit" {
			n++
		}
	}
	return n
}

// repeat sends the scenario's request again and checks the answer.
func (s scenario) repeat(h *crashHost, isDone bool) {
	h.T.Helper()
	err := s.act(h)
	if want := s.again; isDone && harness.CodeOf(err) != want || !isDone && err != nil {
		h.T.Errorf("asked once more (done before: %v): %v", isDone, err)
	}
	if !s.done(h) {
		h.T.Error("it was asked for once more and is not done")
	}
}

// outcome checks the state of the host after the request is complete. It applies to all runs, with
// or without a kill.
func (s scenario) outcome(h *crashHost, kept string, pid int) {
	h.T.Helper()
	if s.after != nil {
		s.after(h)
	}
	h.settle()
	if now := h.mountsOf(s.keeps); now != kept {
		h.T.Errorf("mounts that were not to be touched changed:\n%s\nwere:\n%s", now, kept)
	}
	if now := h.PluginPID("rec"); now != pid {
		h.T.Errorf("the plugin is process %d, was %d", now, pid)
	}
	if got := h.pluginStarts(); got != h.starts {
		h.T.Errorf("the plugin was started %d times, want %d", got, h.starts)
	}
	h.finish()
}

var noWait = apiclient.DetachOptions{}
