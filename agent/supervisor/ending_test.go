package supervisor_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
)

// TestEnd checks which plugins end when the host shuts down. A plugin that is still needed must
// keep running. The records must not look as if an operator had stopped the plugins.
func TestEnd(t *testing.T) {
	b := newBench(t)
	b.set("env", "")
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.inUse.Store(true) // volumes in use must not keep a plugin running here
	b.start()
	first := b.await("fake", supervisor.Ready)

	b.sup.End(within(t), func(id string) bool { return id == "fake" })
	if !alive(first.PID) {
		t.Error("a plugin ended that is needed")
	}
	b.stop()
	b.start()
	if st := b.await("fake", supervisor.Ready); st.PID != first.PID {
		t.Errorf("the next agent has another process: %+v", st)
	}
	b.sup.End(within(t), func(string) bool { return false })
	if alive(first.PID) {
		t.Error("it runs on")
	}
	if st := b.status("fake"); st.State != supervisor.Stopped || !strings.Contains(st.Reason, "going down") {
		t.Errorf("it is %+v", st)
	}
	b.reload() // a reload after End must not start a plugin
	b.stop()
	if n := len(b.starts()); n != 1 {
		t.Errorf("%d starts", n)
	}
	b.start()
	b.await("fake", supervisor.Ready)
}

// TestEndBounded checks that End returns when its context ends, even if a plugin does not end.
func TestEndBounded(t *testing.T) {
	b := newBench(t)
	b.opts.StopGrace = time.Hour
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	must(t, syscall.Kill(first.PID, syscall.SIGSTOP)) // a stopped process does not react to SIGTERM
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	b.sup.End(ctx, func(string) bool { return false })
	if !alive(first.PID) {
		t.Error("it was killed before its time")
	}
	b.stop()
}
