package mount

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// outstanding returns the number of calls that have not returned.
func (g *gate) outstanding() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.busy)
}

func TestLookAtTheHung(t *testing.T) {
	root := tempDir(t)
	dir, other := mkdir(t, root, "m"), mkdir(t, root, "other")
	mountFS(t, "tmpfs", "t", other, 0, "")
	f := serveFuse(t, dir, false)
	alive := see(t, dir)
	f.sleep()

	const bound = time.Second
	h, ctx := boundedHost(t, bound), context.Background()
	begin := time.Now()
	first := h.Look(ctx, dir)
	if took := time.Since(begin); first.Seen != volume.SeenHung || took < bound || took > 20*bound {
		t.Fatalf("after %v: %+v", took, first)
	}
	since, err := time.Parse(time.RFC3339, strings.TrimPrefix(first.Detail, "no answer since "))
	if err != nil || since.Before(begin.Truncate(time.Second)) || since.After(begin.Add(10*time.Second)) {
		t.Errorf("hung %q, asked at %v: %v", first.Detail, begin, err)
	}

	// While the first look hangs, further looks fail at once and send no request to the file
	// system.
	begin = time.Now()
	for range 20 {
		if s := h.Look(ctx, dir); s != first {
			t.Errorf("hung still: %+v", s)
		}
	}
	if took := time.Since(begin); took > 10*bound {
		t.Errorf("20 more looks took %v", took)
	}
	if n := h.gate.outstanding(); n != 1 {
		t.Errorf("%d calls outstanding", n)
	}
	if s := h.Look(ctx, other); s.Seen != volume.SeenMount {
		t.Errorf("another mount: %+v", s)
	}

	f.wake()
	await(t, "the look to return", func() bool { return h.gate.outstanding() == 0 })
	if s := see(t, dir); s != alive {
		t.Errorf("awake: %+v, before %+v", s, alive)
	}
}

// TestLookAtTheMute looks at a FUSE mount whose daemon never answered FUSE_INIT. Every look hangs
// until the daemon ends.
func TestLookAtTheMute(t *testing.T) {
	dir := mkdir(t, tempDir(t), "m")
	dev := openFuse(t, dir, "")
	h := boundedHost(t, 50*time.Millisecond)
	for range 3 {
		if s := h.Look(context.Background(), dir); s.Seen != volume.SeenHung {
			t.Fatalf("mute: %+v", s)
		}
	}
	// A look at a path below the mount hangs too, and has the same time limit.
	if s := h.Look(context.Background(), dir+"/x/y"); s.Seen != volume.SeenHung {
		t.Errorf("below the mute: %+v", s)
	}
	if n := h.gate.outstanding(); n != 2 {
		t.Errorf("%d calls outstanding", n)
	}
	check(t, dev.Close())
	await(t, "the looks to return", func() bool { return h.gate.outstanding() == 0 })
	if s := see(t, dir); s.Seen != volume.SeenDead || s.Identity.FSType != "fuse" {
		t.Errorf("dead: %+v", s)
	}
}

// TestForceFreesTheHung checks that a forced unmount does not wait for a hanging look, and makes
// the look return.
func TestForceFreesTheHung(t *testing.T) {
	dir := mkdir(t, tempDir(t), "m")
	f := serveFuse(t, dir, false)
	f.sleep()
	h, ctx := boundedHost(t, time.Second), context.Background()
	if s := h.Look(ctx, dir); s.Seen != volume.SeenHung {
		t.Fatalf("asleep: %+v", s)
	}
	// The hanging look itself keeps the mount busy.
	if err := h.Unmount(ctx, dir, Plain); !errors.Is(err, unix.EBUSY) {
		t.Errorf("plain: %v", err)
	}
	if err := h.Unmount(ctx, dir, Force); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Errorf("force: %v", err)
	}
	await(t, "the look to return", func() bool { return h.gate.outstanding() == 0 })
	check(t, h.Unmount(ctx, dir, Plain))
	if s := h.Look(ctx, dir); s.Seen != volume.SeenNothing {
		t.Errorf("unmounted: %+v", s)
	}
}

func TestLookGivesUpWithItsCaller(t *testing.T) {
	dir := mkdir(t, tempDir(t), "m")
	f := serveFuse(t, dir, false)
	f.sleep()
	h := newHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	sight := make(chan volume.Sight)
	go func() { sight <- h.Look(ctx, dir) }()
	await(t, "the question", f.asked)
	cancel()
	if s := <-sight; s.Seen != volume.SeenError || !strings.Contains(s.Detail, "context canceled") {
		t.Errorf("cancelled: %+v", s)
	}
	// The next look waits for the running look and then makes a new request.
	go func() { sight <- h.Look(context.Background(), dir) }()
	f.wake()
	if s := <-sight; s.Seen != volume.SeenMount {
		t.Errorf("next: %+v", s)
	}
}

func TestBoundedAsksAnew(t *testing.T) {
	h, ctx := boundedHost(t, time.Minute), context.Background()
	hold, held := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = bounded(ctx, &h.gate, kindLook, "/x", func() (int, error) { close(held); <-hold; return 1, nil })
	}()
	<-held
	got := make(chan int)
	go func() {
		n, _ := bounded(ctx, &h.gate, kindLook, "/x", func() (int, error) { return 2, nil })
		got <- n
	}()
	n, err := bounded(ctx, &h.gate, kindLook, "/y", func() (int, error) { return 3, nil })
	if n != 3 || err != nil {
		t.Errorf("another path: %d, %v", n, err)
	}
	if _, err := bounded(ctx, &h.gate, kindChange, "/x", func() (int, error) { return 0, unix.EBUSY }); !errors.Is(err, unix.EBUSY) {
		t.Errorf("another kind: %v", err)
	}
	close(hold)
	if n := <-got; n != 2 {
		t.Errorf("the second call got the answer of another: %d", n)
	}
	await(t, "all to return", func() bool { return h.gate.outstanding() == 0 })
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := bounded(cancelled, &h.gate, kindLook, "/x", func() (int, error) { t.Error("called"); return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
}

func TestHungErrorSays(t *testing.T) {
	e := &HungError{Call: "unmount", Path: "/x y", Since: time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)}
	if got, want := e.Error(), `unmount "/x y": no answer since 2024-01-02T03:04:05Z`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUnmountsDoNotQueue checks that each way to unmount (plain, forced, lazy) works while the
// previous way hangs.
func TestUnmountsDoNotQueue(t *testing.T) {
	at := mkdir(t, tempDir(t), "m")
	h, ctx := boundedHost(t, 2*time.Second), context.Background() // long enough for calls that do not hang
	hold := make(chan struct{})
	for i, how := range []How{Force, Lazy} {
		c := begin(ctx, &h.gate, []kind{kindUnmount, kindForce}[i], at, func() (int, error) { <-hold; return 0, nil })
		c.bound = time.Millisecond
		_, err := c.wait(ctx)
		var hung *HungError
		if !errors.As(err, &hung) || hung.Path != at {
			t.Fatalf("not hung: %v", err)
		}
		mountFS(t, "tmpfs", "t", at, 0, "")
		check(t, h.Unmount(ctx, at, how))
	}
	if err := h.Unmount(ctx, at, Plain); err == nil || !strings.Contains(err.Error(), "no answer since") {
		t.Errorf("plain, twice: %v", err)
	}
	close(hold)
	await(t, "all to return", func() bool { return h.gate.outstanding() == 0 })
}

// TestLookAllBesideTheHung checks that hanging looks do not delay each other or the other looks,
// and that LookAll returns each result for the right path.
func TestLookAllBesideTheHung(t *testing.T) {
	const bound = 4 * time.Second
	root := tempDir(t)
	var paths []string
	var want []volume.Seen
	for i := range 3 * looksAtOnce {
		paths = append(paths, root+"/missing"+strings.Repeat("x", i))
		want = append(want, volume.SeenNothing)
	}
	for i, name := range []string{"a", "b", "c"} {
		dir := mkdir(t, root, name)
		f := serveFuse(t, dir, false)
		see(t, dir)
		f.sleep()
		paths[i*5], want[i*5] = dir, volume.SeenHung
	}
	paths[7] = mkdir(t, root, "good")
	want[7] = volume.SeenMount
	mountFS(t, "tmpfs", "t", paths[7], 0, "")
	h := boundedHost(t, bound)
	begin := time.Now()
	sights := h.LookAll(context.Background(), paths, nil)
	if took := time.Since(begin); took > 2*bound+bound/2 {
		t.Errorf("three that hang took %v, where each may take %v", took, bound)
	}
	for i, s := range sights {
		if s.Seen != want[i] {
			t.Errorf("%s: %+v, want %q", paths[i], s, want[i])
		}
	}
	if len(sights) != len(paths) {
		t.Errorf("%d sights of %d paths", len(sights), len(paths))
	}
}

// TestLookAtTheLeaving checks that LookAll does not open a mount that the agent is about to
// unmount. A file system that hangs on open then does not delay the result.
func TestLookAtTheLeaving(t *testing.T) {
	dir := mkdir(t, tempDir(t), "m")
	f := serveFuse(t, dir, false)
	good := see(t, dir)
	f.sleep()
	h := boundedHost(t, time.Minute)
	if s := h.LookAll(context.Background(), []string{dir}, map[string]bool{dir: true}); s[0] != good {
		t.Errorf("saw %+v, was %+v", s[0], good)
	}
	f.wake()
}
