package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestTasks claims a volume on a host that has only the node part of a driver. A host with a
// controller makes the calls. It is killed in the middle of a ControllerPublishVolume and started
// again: the claim still succeeds, and nothing remains attached. Without a controller, the claim says
// what is missing. (I10, I11)
func TestTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	a := r.hosts[0]
	b := r.start("h2", san.Config{Attach: true, Stage: true, NodeOnly: true})
	r.share("db")

	path := claim(b, "db", "web", "--timeout", "20s")
	b.Must(write(b, path, "greeting", "from h2"))
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()

	release := r.san.Hold("ControllerPublishVolume", "h1")
	claimed := b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "60s")
	r.awaitHeld("ControllerPublishVolume")
	a.Kill()
	a.Start("san")
	release()
	if got := <-claimed; got.Code != 0 {
		t.Fatalf("the claim ended with %d: %s", got.Code, got.Err)
	} else if text := read(b, strings.TrimSpace(got.Out), "greeting"); text != "from h2" {
		t.Errorf("the volume contains %q", text)
	}
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}

// TestNoController claims a volume on a host that has only the node part of a driver, while no other
// host is alive. The claim ends with an error that names what is missing.
func TestNoController(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	a := r.hosts[0]
	b := r.start("h2", san.Config{Attach: true, Stage: true, NodeOnly: true})
	r.share("db")
	a.Kill()
	store := r.open()
	defer func() { _ = store.Close() }()
	if _, err := store.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Delete(shared.LiveKey("h1"))}}); err != nil {
		t.Fatal(err)
	}

	got := b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "5s")
	if words := "no live host runs a controller of driver san.example.com"; got.Code == 0 || !strings.Contains(got.Err, words) {
		t.Errorf("the claim ended with %d: %s", got.Code, got.Err)
	}
}

// awaitHeld waits until the SAN holds a call of a method.
func (r *rig) awaitHeld(method string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		for _, c := range r.san.InFlight() {
			if c.Method == method && c.Held {
				return
			}
		}
	}
	r.t.Fatalf("no %s has reached the SAN", method)
}
