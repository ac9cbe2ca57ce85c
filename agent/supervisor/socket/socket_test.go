package socket

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor/runner"
)

// progress is a fake runner.Progress. It records the reasons that a start reports, and interrupts
// the start when wake contains a value.
type progress struct {
	reasons chan string
	wake    chan struct{}
}

func (p progress) Note(string)             {}
func (p progress) Unhealthy(reason string) { p.reasons <- reason }
func (p progress) Wake() <-chan struct{}   { return p.wake }
func (p progress) Due() bool               { return true }

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.UnixListener)
}

// TestSocket checks that Start waits until a process listens on the socket. If the process opens
// the socket again, it must count as another instance.
func TestSocket(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "so") //nolint:usetesting // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	p := progress{make(chan string, 1000), make(chan struct{}, 1)}
	r := New(path, p)
	if run := r.Traits(); run.Owned || run.Ends || run.Socket != path || run.Log != nil {
		t.Errorf("%+v", run)
	}

	type result struct {
		inst runner.Instance
		err  error
	}
	started := make(chan result, 1)
	start := func() {
		inst, err := r.Start(t.Context())
		started <- result{inst, err}
	}
	go start()
	if reason := <-p.reasons; !strings.HasSuffix(reason, "does not exist") {
		t.Errorf("reason %q", reason)
	}
	l := listen(t, path)
	got := <-started
	if got.err != nil || got.inst.PID() != os.Getpid() || got.inst.Done() != nil || got.inst.Stale() {
		t.Fatalf("%+v", got)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if got.inst.Stale() {
		t.Error("a socket without a process is the same socket")
	}
	for len(p.reasons) > 0 {
		<-p.reasons
	}
	go start()
	if reason := <-p.reasons; !strings.Contains(reason, "no process listens") {
		t.Errorf("reason %q", reason)
	}
	p.wake <- struct{}{}
	if got := <-started; !errors.Is(got.err, runner.ErrDue) {
		t.Errorf("an interrupted start: %+v", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	listen(t, path)
	if !got.inst.Stale() {
		t.Error("another socket is not noticed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if another, err := r.Start(ctx); err != nil || another.Key() == got.inst.Key() {
		t.Errorf("another socket has the same key: %v", err)
	}
}
