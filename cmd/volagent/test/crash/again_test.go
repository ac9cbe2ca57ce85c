package crash_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
)

// TestCrashTwice kills the agent, and then kills the next agent during its recovery. With
// -crash.full it kills the next agent at every point of the recovery.
func TestCrashTwice(t *testing.T) {
	var count crashCount
	count.report(t)
	for _, s := range scenarios() {
		if !s.every {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			count.scenarios.Add(1)
			points := s.count(t)
			count.points.Add(int64(len(points)))
			for _, first := range s.firsts(len(points)) {
				t.Run(fmt.Sprintf("first at %d %s", first, points[first-1]), func(t *testing.T) {
					t.Parallel()
					if !*crashFull {
						s.twice(t, first, 1+s.rand(fmt.Sprint("second", first)).IntN(6), &count)
						return
					}
					for second := 1; s.twice(t, first, second, &count); second++ {
					}
				})
			}
		})
	}
}

// firsts returns the points at which the test kills the first agent. With -crash.full these are all
// points, and otherwise three random points.
func (s scenario) firsts(n int) []int {
	all := s.rand("first").Perm(n)
	if !*crashFull {
		all = all[:3]
	}
	for i := range all {
		all[i]++
	}
	slices.Sort(all)
	return all
}

// twice kills the first agent at one point of the scenario, and kills the next agent at a point of
// its recovery. In every second case it also kills the plugin. It returns false if the recovery was
// complete before the second point.
func (s scenario) twice(t *testing.T, first, second int, count *crashCount) (reached bool) {
	t.Run(fmt.Sprintf("again at %d", second), func(t *testing.T) {
		h := s.prepare(t)
		kept, pid := h.mountsOf(s.keeps), h.PluginPID("rec")
		h.order(crasher.Order{At: first, Agent: true})
		err := s.act(h)
		if !h.dead() {
			t.Fatalf("the agent did not come to the first point: %q, %v", h.points(), err)
		}
		points := h.points()
		count.kills.Add(1)

		o := crasher.Order{At: second, Agent: true}
		if (first+second)%2 == 0 {
			o.Plugin = pid
		}
		h.order(o)
		h.launch(true)
		reached = h.diesOrSettles(o)
		again := h.points()
		h.disarm()
		if reached {
			count.kills.Add(1)
			if o.Plugin != 0 {
				count.plugins.Add(1)
				h.starts++
			}
			h.records()
			h.launch(false)
		}
		h.Await("the plugin", func() bool { return h.pluginStarts() == h.starts })
		h.Must(h.up())
		count.recoveries.Add(1)
		h.settle()
		isDone := s.done(h)
		if bound := committed(points) >= s.binding; bound != isDone {
			t.Errorf("it is done: %v; points: %q, then %q", isDone, points, again)
		}
		s.repeat(h, isDone)
		s.outcome(h, kept, h.PluginPID("rec"))
	})
	return reached && !t.Failed()
}

// diesOrSettles waits for one of two events. It returns true if the agent killed itself, and false
// if the agent recovered and its state is consistent.
func (h *crashHost) diesOrSettles(o crasher.Order) bool {
	h.T.Helper()
	cmd := h.Cmd
	ended := waited(cmd)
	agrees := func() bool { return h.up() == nil && h.agree() == nil && h.onDisk() }
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			h.Cmd = nil
			return true
		default:
		}
		if agrees() {
			// Kill this agent, and complete the test with the real volagent program. Before the
			// kill, this agent may still commit a change in the background, and may die at that
			// commit.
			err := cmd.Process.Kill()
			<-ended
			h.Cmd = nil
			if errors.Is(err, os.ErrProcessDone) {
				return true
			}
			h.Must(err)
			if len(h.points()) >= o.At {
				// The agent had started to execute the order. Perhaps it was killed before it could
				// kill the plugin, so kill the plugin here.
				if o.Plugin == 0 {
					return true
				}
				if err := crasher.Kill(o.Plugin); !errors.Is(err, syscall.ESRCH) {
					h.Must(err)
				}
				return true
			}
			h.launch(false)
			return false
		}
	}
	h.T.Fatalf("the agent neither died nor did what it is for: %v; points: %q", h.agree(), h.points())
	return false
}

// TestCrashStart kills the agent at each commit of its first start, while the agent starts its
// plugin. Afterwards exactly one plugin process must be running, and the plugin must have been
// started only once.
func TestCrashStart(t *testing.T) {
	var count crashCount
	count.report(t)
	count.scenarios.Add(1)
	start := func(t *testing.T, at int) (h *crashHost, points []string) {
		h = newCrashHost(t, nil)
		h.Slow = true // when the next agent starts, the plugin has no socket yet
		h.WritePlugin(crashDeadline)
		h.order(crasher.Order{At: at, Agent: true})
		h.launch(true)
		if at > 0 && h.up() != nil {
			if !h.dead() {
				t.Fatal("the agent neither died nor was ready")
			}
			count.kills.Add(1)
			h.records()
			h.launch(false)
		}
		h.Must(h.up())
		points = h.points()
		h.disarm()
		return h, points
	}
	_, points := start(t, 0)
	count.points.Add(int64(len(points)))
	for at := range points {
		t.Run(fmt.Sprintf("dies at %d %s", at+1, points[at]), func(t *testing.T) {
			h, _ := start(t, at+1)
			count.recoveries.Add(1)
			h.Must(h.registerData())
			h.seed("data")
			h.Must(h.claim("a", plain(h)))
			h.settle()
			if got := h.pluginStarts(); got != 1 {
				t.Errorf("the plugin was started %d times", got)
			}
			ctx, cancel := h.ctx()
			defer cancel()
			if p, err := h.api.Plugin(ctx, "rec"); err != nil || p.Restarts > 0 {
				t.Errorf("the plugin was not found at once, but started %d times more: %v", p.Restarts, err)
			}
			h.finish()
		})
	}
}
