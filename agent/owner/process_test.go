package owner_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/volmgr/volume"
)

const boot = "7f3c0c7e-boot"

// open returns an open watcher. The watcher is closed when the test ends.
func open(t *testing.T, o owner.Options) *owner.Watcher {
	t.Helper()
	o.Boot = boot
	w := owner.New(o)
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// child starts a process that only waits.
func child(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if len(args) == 0 {
		args = []string{"sleep", "600"}
	}
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, cmd) })
	return cmd
}

// end kills a child on the first call, and waits for its end.
func end(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if cmd.ProcessState != nil {
		return
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	_ = cmd.Wait() // the error only says that the child was killed
}

func resolved(t *testing.T, w *owner.Watcher, pid int) volume.Owner {
	t.Helper()
	o, err := w.Resolve(t.Context(), volume.Owner{Kind: volume.OwnerPID, PID: pid})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// await waits until cond returns true.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not come true in time: %s", what)
		}
	}
}

// ended waits until the watcher has reported an end and the owner is gone.
func ended(t *testing.T, w *owner.Watcher, o volume.Owner) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for !w.Gone(o) {
		select {
		case <-w.Ended():
		case <-limit:
			t.Fatalf("nobody told of the end of %+v", o)
		}
	}
	if v := w.View(o); v.Life != volume.LifeGone {
		t.Errorf("the view of one that is gone: %+v", v)
	}
}

// TestProcessEnds checks that the watcher notices every way in which a process can end.
func TestProcessEnds(t *testing.T) {
	for name, how := range map[string]func(*exec.Cmd) error{
		"killed":               func(c *exec.Cmd) error { return c.Process.Kill() },
		"terminated":           func(c *exec.Cmd) error { return c.Process.Signal(unix.SIGTERM) },
		"killed while stopped": func(c *exec.Cmd) error { return errors.Join(c.Process.Signal(unix.SIGSTOP), c.Process.Kill()) },
	} {
		// Test once with the default limit of pidfds, and once without any pidfd.
		for _, fds := range []int{0, -1} {
			w := open(t, owner.Options{MaxPidfds: fds, PollEvery: 20 * time.Millisecond})
			c := child(t)
			o := resolved(t, w, c.Process.Pid)
			if w.Gone(o) || w.View(o) != (volume.OwnerView{Life: volume.LifeRunning, PID: c.Process.Pid, Command: "sleep"}) {
				t.Errorf("%s: before that: %+v", name, w.View(o))
			}
			if err := how(c); err != nil {
				t.Fatal(err)
			}
			// the child is still a zombie, because the test has not waited for it yet
			ended(t, w, o)
			end(t, c)
			if !w.Gone(o) {
				t.Errorf("%s: it came back", name)
			}
		}
	}
	w := open(t, owner.Options{})
	c := exec.Command("sh", "-c", "read x; exit 3")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	o := resolved(t, w, c.Process.Pid)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, w, o)
	_ = c.Wait() // the error only reports exit code 3
}

// TestPidReused checks that a pid alone does not identify a process. A process with the same pid
// but a different start time or boot is a different process.
func TestPidReused(t *testing.T) {
	for _, fds := range []int{0, -1} {
		w := open(t, owner.Options{MaxPidfds: fds, PollEvery: 20 * time.Millisecond})
		o := resolved(t, w, child(t).Process.Pid)
		was := o
		was.StartTime -= 10
		w.Watch(was)
		ended(t, w, was)
		if w.Gone(o) {
			t.Error("the process that has the pid is gone as well")
		}
		old := o
		old.Boot = "an earlier boot"
		if w.Watch(old); !w.Gone(old) || w.View(old).Life != volume.LifeGone {
			t.Error("a process outlived its boot")
		}
		select {
		case <-w.Ended():
		case <-time.After(60 * time.Second):
			t.Error("nobody told of a process of an earlier boot")
		}
	}
}

// TestResolveProcess checks that the error gives the reason why a process cannot own a claim.
func TestResolveProcess(t *testing.T) {
	w := open(t, owner.Options{})
	dead := child(t, "true")
	if _, err := dead.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zombie.Wait() }() // this child ends at once; the error of Wait has no meaning
	stat := func() string {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", zombie.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	await(t, "a zombie", func() bool { return strings.Contains(stat(), ") Z ") })
	for _, tt := range []struct {
		o     volume.Owner
		kind  error
		words string
	}{
		{volume.Owner{Kind: volume.OwnerPID, PID: dead.Process.Pid}, volume.ErrRefused, "no running process"},
		{volume.Owner{Kind: volume.OwnerPID, PID: zombie.Process.Pid}, volume.ErrRefused, "no running process"},
		{volume.Owner{Kind: volume.OwnerPID}, volume.ErrInvalid, "0 is not a pid"},
		{volume.Owner{Kind: volume.OwnerPID, PID: -1}, volume.ErrInvalid, "-1 is not a pid"},
		{volume.Owner{Kind: volume.OwnerPID, PID: otherThread(t)}, volume.ErrInvalid, "is a thread of"},
		{volume.Owner{Kind: volume.OwnerRuntime, Runtime: "docker"}, volume.ErrInvalid, "only the volume plugin of a container runtime"},
		{volume.Owner{Kind: "host"}, volume.ErrInvalid, `unknown kind of owner "host"`},
		{volume.Owner{Kind: volume.OwnerUnit}, volume.ErrInvalid, "not a unit name"},
		{volume.Owner{Kind: volume.OwnerUnit, Unit: "a.service", Invocation: "x"}, volume.ErrInvalid, "not an invocation id"},
	} {
		_, err := w.Resolve(t.Context(), tt.o)
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%+v: %v", tt.o, err)
		}
	}
	for _, o := range []volume.Owner{{}, {Kind: volume.OwnerNone, PID: 1}} {
		got, err := w.Resolve(t.Context(), o)
		if err != nil || got != (volume.Owner{Kind: volume.OwnerNone}) || w.Gone(got) {
			t.Errorf("%+v became %+v, %v", o, got, err)
		}
	}
}

// otherThread returns the id of a thread of this process that is not its main thread.
func otherThread(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		var tid int
		if _, err := fmt.Sscan(n.Name(), &tid); err == nil && tid != os.Getpid() {
			return tid
		}
	}
	t.Fatal("this process has one thread")
	return 0
}

// pidfds counts the open pidfds of this process.
func pidfds(t *testing.T) int {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}

// TestOneDescriptorEach checks that a watched process costs one pidfd and no goroutine, however
// many claims it owns. A process that is no longer watched costs nothing.
func TestOneDescriptorEach(t *testing.T) {
	before := pidfds(t) // os/exec also opens a pidfd for each child
	w := open(t, owner.Options{})
	const n = 30
	var pids []int
	for range n {
		pids = append(pids, child(t).Process.Pid)
	}
	own := pidfds(t) - before
	goroutines := runtime.NumGoroutine()
	var owners []volume.Owner
	for _, pid := range pids {
		owners = append(owners, resolved(t, w, pid))
	}
	for range 10 {
		for _, o := range owners {
			w.Watch(o)
		}
	}
	if got := pidfds(t) - before - own; got != n {
		t.Errorf("%d descriptors for %d processes", got, n)
	}
	if got := runtime.NumGoroutine(); got > goroutines {
		t.Errorf("%d goroutines, there were %d", got, goroutines)
	}
	late := volume.Owner{}
	w.Keep(func() []volume.Owner {
		late = resolved(t, w, owners[9].PID) // another caller makes this claim during Keep
		return owners[:5]
	})
	if got := pidfds(t) - before - own; got != 6 {
		t.Errorf("%d descriptors for 6 processes", got)
	}
	if err := unix.Kill(late.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, w, late)
	if got := pidfds(t) - before - own; got != 5 {
		t.Errorf("%d descriptors for 5 processes that run", got)
	}
}

// TestPolledPastTheBound checks that the watcher polls the processes for which its limit permits no
// pidfd. When a watched process ends and its pidfd becomes free, a polled process gets a pidfd.
func TestPolledPastTheBound(t *testing.T) {
	before := pidfds(t)
	w := open(t, owner.Options{MaxPidfds: 2, PollEvery: 20 * time.Millisecond})
	var owners []volume.Owner
	var children []*exec.Cmd
	for range 5 {
		children = append(children, child(t))
	}
	own := pidfds(t) - before
	for _, c := range children {
		owners = append(owners, resolved(t, w, c.Process.Pid))
	}
	open := func() int { return pidfds(t) - before - own }
	if got := open(); got != 2 {
		t.Errorf("%d descriptors, 2 are allowed", got)
	}
	kill := func(i int) {
		if err := unix.Kill(owners[i].PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		ended(t, w, owners[i])
	}
	kill(4) // this process has no pidfd, so the watcher polls it
	if got := open(); got != 2 {
		t.Errorf("%d descriptors", got)
	}
	kill(0)
	await(t, "a polled process with a descriptor", func() bool { return open() == 2 })
	kill(1)
	kill(2)
	kill(3)
	await(t, "no descriptor", func() bool { return open() == 0 })
}

// TestCheck checks that Check notices an end before the watcher reports it. It must not report an
// end for a running process.
func TestCheck(t *testing.T) {
	w := open(t, owner.Options{MaxPidfds: -1, PollEvery: time.Hour})
	a, b := child(t), child(t)
	dead, alive := resolved(t, w, a.Process.Pid), resolved(t, w, b.Process.Pid)
	end(t, a)
	// the watcher polled only after this child had ended, so try again with another child
	if w.Gone(dead) {
		a = child(t)
		dead = resolved(t, w, a.Process.Pid)
		end(t, a)
	}
	if w.Gone(dead) {
		t.Fatal("it was polled again")
	}
	w.Check(context.Background(), []volume.Owner{dead, alive, {Kind: volume.OwnerNone}})
	if !w.Gone(dead) || w.Gone(alive) {
		t.Errorf("gone: %t and %t", w.Gone(dead), w.Gone(alive))
	}
}

// TestClose checks that Close closes all descriptors, and that later calls are harmless.
func TestClose(t *testing.T) {
	before := pidfds(t)
	w := owner.New(owner.Options{Boot: boot})
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	c := child(t)
	own := pidfds(t) - before
	o := resolved(t, w, c.Process.Pid)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.Watch(o)
	w.Watch(resolved(t, w, os.Getpid()))
	if got := pidfds(t) - before - own; got != 0 || w.Gone(o) {
		t.Errorf("%d descriptors, gone: %t", got, w.Gone(o))
	}
}
