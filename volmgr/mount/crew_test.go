package mount

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// lingering returns the number of goroutines that wait for a call.
func (g *gate) lingering() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.crew.idle)
}

// self returns the id of the calling goroutine.
func self() string {
	var buf [64]byte
	return strings.Fields(string(buf[:runtime.Stack(buf[:], false)]))[1]
}

// callAs runs fn as a call through the gate, and returns the id of the goroutine that ran it.
func callAs(t *testing.T, h *Host, path string, fn func()) string {
	t.Helper()
	id, err := bounded(context.Background(), &h.gate, kindLook, path, func() (string, error) { fn(); return self(), nil })
	check(t, err)
	return id
}

// TestCallsShareAGoroutineInTurn checks that one goroutine makes several calls one after another.
// While one call hangs, another goroutine must make the next call.
func TestCallsShareAGoroutineInTurn(t *testing.T) {
	h := boundedHost(t, time.Minute)
	first := callAs(t, h, "/a", func() {})
	if next := callAs(t, h, "/b", func() {}); next != first {
		t.Errorf("one call was made in goroutine %s, the next in %s", first, next)
	}
	hold, held, hung := make(chan struct{}), make(chan struct{}), make(chan string)
	go func() { hung <- callAs(t, h, "/hung", func() { close(held); <-hold }) }()
	<-held
	other := callAs(t, h, "/c", func() {})
	if again := callAs(t, h, "/d", func() {}); again != other {
		t.Errorf("one call was made in goroutine %s, the next in %s", other, again)
	}
	close(hold)
	if got := <-hung; got != first || other == first {
		t.Errorf("the call that hung was made in goroutine %s, those before it in %s, those beside it in %s", got, first, other)
	}
}

// TestFewGoroutinesLinger checks that only a few goroutines wait after many parallel calls, and
// only for a short time.
func TestFewGoroutinesLinger(t *testing.T) {
	h := boundedHost(t, time.Minute)
	before := runtime.NumGoroutine()
	var calls, made sync.WaitGroup
	hold := make(chan struct{})
	for i := range 3 * lingerMost {
		made.Add(1)
		calls.Go(func() { callAs(t, h, "/"+strings.Repeat("x", i), func() { made.Done(); <-hold }) })
	}
	made.Wait() // from here on, all calls run at the same time
	close(hold)
	calls.Wait()
	if n := h.gate.lingering(); n != lingerMost {
		t.Errorf("%d goroutines linger, want %d", n, lingerMost)
	}
	// All waiting goroutines end, except the one that keeps getting calls.
	used := callAs(t, h, "/again", func() {})
	await(t, "all but one to go", func() bool {
		done := h.gate.lingering() == 1
		if id := callAs(t, h, "/again", func() {}); id != used {
			t.Fatalf("goroutine %s was let go while it was used, or %s is taken before it", used, id)
		}
		return done
	})
	await(t, "the host to be idle", func() bool { return h.gate.lingering() == 0 && runtime.NumGoroutine() <= before })
	callAs(t, h, "/anew", func() {})
	if n := h.gate.lingering(); n != 1 {
		t.Errorf("%d goroutines linger after a call on an idle host, want 1", n)
	}
	await(t, "the host to be idle again", func() bool { return h.gate.lingering() == 0 && runtime.NumGoroutine() <= before })
}

// TestCallThatEndsItsGoroutine makes a call that ends the goroutine on which it runs, and checks
// that the next call for the same path still works.
func TestCallThatEndsItsGoroutine(t *testing.T) {
	h := boundedHost(t, time.Minute)
	callAs(t, h, "/x", runtime.Goexit)
	if n := h.gate.lingering() + h.gate.outstanding(); n != 0 {
		t.Fatalf("%d goroutines or calls are left", n)
	}
	if id := callAs(t, h, "/x", func() {}); id == "" {
		t.Error("the next call was not made")
	}
}
