package cluster_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestLateCall suspends the agent of a host while its ControllerPublishVolume is in the SAN. Another host
// takes the call over, and detaches the suspended host. The call then takes effect late. No other host
// gets the volume. When the agent continues, the volume is mounted, and nothing is left over after its
// detach. (I1, I4, I11)
func TestLateCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db", mode("single-node-multi-writer"))

	release := r.san.Hold("ControllerPublishVolume", "h1")
	claimed := a.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	r.awaitHeld("ControllerPublishVolume")
	harness.Freeze(a, a.Cmd.Process)
	r.awaitLeaseEnd("h1")
	b.Await("the end of the call that was taken over", func() bool { return r.value(shared.CallKey("db")) == "" })
	if calls := r.calls("h2"); !slices.Equal(calls, []string{"ControllerUnpublishVolume h1"}) {
		t.Errorf("host h2 has made the calls %q", calls)
	}

	release()
	r.awaitLate("h1")
	refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `held by host "h1"`)
	a.Must(a.Cmd.Process.Signal(syscall.SIGCONT))
	got := <-claimed
	if got.Code != 0 {
		t.Fatalf("the claim ended with %d: %s", got.Code, got.Err)
	}
	a.Must(write(a, strings.TrimSpace(got.Out), "f", "x"))
	refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `held by host "h1"`)

	a.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	b.Must(write(b, claim(b, "db", "web", "--timeout", "60s"), "f", "y"))
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	r.expectFree("db")
}

// TestLateTask suspends the agent of a host while its ControllerPublishVolume for another host is in the
// SAN. The other host gets the volume through a third host, and gives it up. The call then takes effect
// late, for a host without a hold. The host that made the call ends this attachment after it has
// continued, also if the driver does not list the attached nodes. If a third host has the volume by
// then, the SAN refuses the late call, and that host keeps the volume. (I1, I4, I11)
func TestLateTask(t *testing.T) {
	for _, c := range []struct {
		name   string
		driver san.Config
		used   bool // a third host uses the volume when the late call takes effect
		after  bool // the late call takes effect after its agent has continued
	}{
		{name: "free"},
		{name: "after", after: true},
		{name: "listed", driver: san.Config{PublishedNodes: true}},
		{name: "used", used: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.driver.Attach, c.driver.Stage = true, true
			r := newRig(t, 1, 1, c.driver)
			a := r.hosts[0]
			target := c.driver
			target.NodeOnly = true
			b, third := r.start("h2", target), r.start("h3", c.driver)
			r.share("db", mode("single-node-multi-writer"))

			r.san.SetPermissive(!c.used) // the SAN refuses the late call only if it is strict

			release := r.san.Hold("ControllerPublishVolume", "h1")
			claimed := b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
			r.awaitHeld("ControllerPublishVolume")
			harness.Freeze(a, a.Cmd.Process)
			r.awaitLeaseEnd("h1")
			expectDone(t, "the claim", claimed)
			b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
			r.awaitGone()
			r.expectFree("db")

			path := ""
			if c.used {
				path = claim(third, "db", "web", "--timeout", "60s")
			}
			if c.after {
				a.Must(a.Cmd.Process.Signal(syscall.SIGCONT))
				release()
				r.awaitLate("h2")
			} else {
				release()
				r.awaitLate("h2")
				a.Must(a.Cmd.Process.Signal(syscall.SIGCONT))
			}
			if c.used {
				third.Await("the return of host h1", func() bool { return r.value(shared.LiveKey("h1")) != "" })
				third.Must(write(third, path, "f", "x"))
				third.Volctl("volume", "detach", "db", "web")
			}
			r.awaitCorrected()
			a.Await("the end of all calls", func() bool { return r.value(shared.CallKey("db")) == "" })
			r.expectFree("db")
		})
	}
}

// awaitCorrected waits until no host is attached to any disk. It fails the test if that takes longer than
// promised after all faults have ended.
func (r *rig) awaitCorrected() {
	r.t.Helper()
	deadline, err := time.ParseDuration(callDeadline)
	r.hosts[0].Must(err)
	begun := time.Now()
	r.awaitGone()
	if took := time.Since(begun); took > healWithin+deadline {
		r.t.Errorf("the attachments have ended after %s instead of %s", took, healWithin+deadline)
	}
}

// awaitLate waits until the SAN has ended a ControllerPublishVolume whose caller had stopped waiting. If
// it succeeded, its target is attached.
func (r *rig) awaitLate(target string) {
	r.t.Helper()
	late := func(e san.Event) bool {
		return e.Kind == san.KindAnswer && e.Method == "ControllerPublishVolume" && e.Target == target && e.Late
	}
	r.hosts[0].Await("the late call", func() bool { return slices.ContainsFunc(r.san.Events(), late) })
}
