package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// within returns a context that times out after the duration patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// hint returns the hint of an error.
func hint(err error) string {
	var e *volume.Error
	if !errors.As(err, &e) {
		return ""
	}
	return suggest.Hint(e.Remedy, e.Hint)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestartUnderVolumes checks that a plugin with volumes in use can be restarted only with
// force. A forced restart must also apply a pending change of the plugin's file.
func TestRestartUnderVolumes(t *testing.T) {
	b := newBench(t)
	b.set("env", "")
	b.file("fake.yaml", b.fakeFile("    V: one\n", "health: {interval: 1h}\n"))
	b.inUse.Store(true)
	b.opts.FUSE = func(string) int { return 2 }
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.file("fake.yaml", b.fakeFile("    V: two\n", "health: {interval: 1h}\n"))
	b.reload()
	err := b.sup.Restart("fake", false)
	if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `in use, by "data"; 2 claims have FUSE mounts, which break`) || hint(err) != "volctl plugin restart fake -y" {
		t.Errorf("restart under a volume: %v, hint %q", err, hint(err))
	}
	if st := b.status("fake"); st.PID != first.PID || st.Pending == "" || !b.sup.View("fake").Ready {
		t.Errorf("after the refusal: %+v", st)
	}

	asked := time.Now()
	must(t, b.sup.Restart("fake", true))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked))
	st := b.status("fake")
	if st.PID == first.PID || alive(first.PID) || st.Pending != "" || !strings.Contains(b.fake.text("env", ""), "V=two") || !b.sup.View("fake").Ready {
		t.Errorf("after the restart: %+v", st)
	}

	b.inUse.Store(false)
	asked = time.Now()
	must(t, b.sup.Restart("fake", false))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked))
	if now := b.status("fake"); now.PID == st.PID || alive(st.PID) {
		t.Errorf("unforced, with nothing in use: %+v", now)
	}
}

// TestVolumeComesInAsItIsRestarted checks a volume that starts to use the plugin at the last moment
// before a restart. The restart must notice the volume. A caller that found new calls blocked must
// be notified when calls are possible again.
func TestVolumeComesInAsItIsRestarted(t *testing.T) {
	b := newBench(t)
	var asked atomic.Int32
	var closed atomic.Bool
	b.opts.InUse = func(string) []string {
		if asked.Add(1) == 1 {
			return nil
		}
		closed.Store(!b.sup.View("fake").Ready)
		return []string{"data"}
	}
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	changed := b.sup.Changed("fake")
	if err := b.sup.Restart("fake", false); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("restart: %v", err)
	}
	<-changed
	if st := b.status("fake"); !closed.Load() || st.PID != first.PID || !b.sup.View("fake").Ready {
		t.Errorf("door closed while asked: %v; %+v", closed.Load(), st)
	}
}

// TestStopStays checks that a stop lasts until a start, even across reloads and restarts of the
// agent.
func TestStopStays(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.inUse.Store(true)
	b.start()
	first := b.await("fake", supervisor.Ready)
	err := b.sup.Stop("fake", false)
	if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `"data"`) || hint(err) != "volctl plugin stop fake --force" || !alive(first.PID) {
		t.Fatalf("stop under a volume: %v, hint %q", err, hint(err))
	}
	b.inUse.Store(false)
	must(t, b.sup.Stop("fake", false))
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	if alive(first.PID) {
		t.Error("it still runs after the wait for its end")
	}
	stays := func(when string) {
		t.Helper()
		st, v := b.status("fake"), b.sup.View("fake")
		if st.State != supervisor.Stopped || st.Reason != "on request; to start it: volctl plugin start fake" || v.Ready || !v.Stopped || len(b.starts()) != 1 {
			t.Errorf("%s: %+v, %d starts", when, st, len(b.starts()))
		}
		_, err := b.sup.Client("fake")
		if !errors.Is(err, volume.ErrPluginUnavailable) || hint(err) != "volctl plugin start fake" {
			t.Errorf("client %s: %v, hint %q", when, err, hint(err))
		}
	}
	stays("stopped")
	must(t, b.sup.Stop("fake", false)) // a second stop must change nothing
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	b.reload()
	stays("after a reload")
	b.stop()
	if !b.record(t, "fake").Stopped {
		t.Error("it is not on record")
	}
	b.start()
	stays("with the next agent")
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	stays("when that has looked")

	asked := time.Now()
	must(t, b.sup.Start("fake"))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked))
	if st := b.status("fake"); st.State != supervisor.Ready || len(b.starts()) != 2 {
		t.Errorf("started: %+v", st)
	}
	must(t, b.sup.Start("fake")) // a start must have no effect on a running plugin
	must(t, b.sup.AwaitStarted(within(t), "fake", time.Now()))
	if len(b.starts()) != 2 || b.record(t, "fake").Stopped {
		t.Errorf("%d starts, record %+v", len(b.starts()), b.record(t, "fake"))
	}
}

// TestForcedStop stops a plugin while a volume uses it, and then removes the plugin's file. The
// agent must keep the plugin, because the volume still needs it.
func TestForcedStop(t *testing.T) {
	b := newBench(t)
	b.inUse.Store(true)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	must(t, b.sup.Stop("fake", true))
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	if alive(first.PID) {
		t.Error("it still runs")
	}
	b.stop()
	must(t, os.Remove(b.dir+"/etc/fake.yaml"))
	b.start()
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	if st := b.status("fake"); st.State != supervisor.Stopped || !strings.Contains(st.Pending, "its file was removed") {
		t.Errorf("without its file, with a volume in use: %+v", st)
	}
	if err := b.sup.Start("fake"); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("start without a file: %v", err)
	}
	// A restart must also start a stopped plugin.
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.reload()
	asked := time.Now()
	must(t, b.sup.Restart("fake", true))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked))
	if st := b.status("fake"); st.State != supervisor.Ready || len(b.starts()) != 2 {
		t.Errorf("restarted: %+v", st)
	}
}

// TestStoppedAndRemoved checks that a stop is forgotten when the plugin's file is removed.
func TestStoppedAndRemoved(t *testing.T) {
	b := newBench(t)
	file := b.fakeFile("", "health: {interval: 1h}\n")
	b.file("fake.yaml", file)
	b.start()
	b.await("fake", supervisor.Ready)
	must(t, b.sup.Stop("fake", false))
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	must(t, os.Remove(b.dir+"/etc/fake.yaml"))
	b.reload()
	await(t, "the plugin to be forgotten", func() bool { _, err := b.sup.Status("fake"); return err != nil })
	b.file("fake.yaml", file)
	b.reload()
	b.await("fake", supervisor.Ready)
}

// TestAgentDiesWhileItStops checks that the agent stores a stop before it stops the plugin. If the
// agent dies in between, the next agent must complete the stop.
func TestAgentDiesWhileItStops(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	must(t, syscall.Kill(first.PID, syscall.SIGSTOP)) // a stopped process does not react to SIGTERM
	must(t, b.sup.Stop("fake", false))
	await(t, "the intent", func() bool { return b.record(t, "fake").Stopped })
	b.stop()
	if !alive(first.PID) {
		t.Fatal("it ended before the agent did")
	}
	b.start()
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	if alive(first.PID) || len(b.starts()) != 1 {
		t.Errorf("still alive: %v, %d starts", alive(first.PID), len(b.starts()))
	}
}

// TestStartAtOnce checks that Start starts a plugin at once that has failed or that waits before
// its next start.
func TestStartAtOnce(t *testing.T) {
	b := newBench(t)
	b.opts.Backoff = supervisor.Backoff{Base: time.Hour, Max: time.Hour}
	b.set("exit", "")
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	b.await("fake", supervisor.BackingOff)
	b.unset("exit")
	asked := time.Now()
	must(t, b.sup.Start("fake"))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked))

	// If the plugin fails again, AwaitStarted must return the reason.
	b.set("driver", "other.test")
	asked = time.Now()
	must(t, b.sup.Restart("fake", false))
	if err := b.sup.AwaitStarted(within(t), "fake", asked); !errors.Is(err, volume.ErrPluginUnavailable) || !strings.Contains(err.Error(), "other.test") {
		t.Errorf("restarted as another driver: %v", err)
	}
	asked = time.Now()
	must(t, b.sup.Start("fake"))
	if err := b.sup.AwaitStarted(within(t), "fake", asked); !errors.Is(err, volume.ErrPluginUnavailable) || len(b.starts()) != 4 {
		t.Errorf("started as another driver: %v, %d starts", err, len(b.starts()))
	}
	b.unset("driver")
	asked = time.Now()
	must(t, b.sup.Start("fake"))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked))
}

// TestControlRefused checks three kinds of errors: requests for unknown plugins, requests for
// plugins that the agent does not run, and waits that time out.
func TestControlRefused(t *testing.T) {
	b := newBench(t)
	socket := filepath.Join(b.dir, "x.sock")
	stop := b.serve(socket)
	b.file("x.yaml", "id: x\nsocket: "+socket+"\n"+quick)
	b.file("bad.yaml", "id: bad\n")
	b.file("gone.yaml", "id: gone\nexec: {command: [/no/such/plugin]}\n")
	b.start()
	b.await("x", supervisor.Ready)
	for _, err := range []error{b.sup.Restart("none", true), b.sup.Stop("none", true), b.sup.Start("none")} {
		if !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("unknown plugin: %v", err)
		}
	}
	for _, err := range []error{b.sup.Restart("x", true), b.sup.Stop("x", true)} {
		if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), fmt.Sprintf("this agent does not run it; process %d serves its socket %s", os.Getpid(), socket)) {
			t.Errorf("somebody else's plugin: %v", err)
		}
	}
	must(t, b.sup.Start("x"))
	must(t, b.sup.AwaitStarted(within(t), "x", time.Now()))
	stop()
	b.awaitThat("x", "without its server", func(st supervisor.Status) bool { return st.State == supervisor.Unhealthy && st.PID == 0 })
	if err := b.sup.Restart("x", true); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "no process serves its socket") {
		t.Errorf("a plugin without a process: %v", err)
	}

	must(t, b.sup.Start("bad"))
	if err := b.sup.AwaitStarted(within(t), "bad", time.Now()); !errors.Is(err, volume.ErrPluginUnavailable) || !strings.Contains(err.Error(), "bad.yaml:") {
		t.Errorf("a bad file: %v", err)
	}
	must(t, b.sup.Start("gone"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.sup.AwaitStarted(ctx, "gone", time.Now()); !errors.Is(err, volume.ErrTimeout) || !strings.Contains(err.Error(), `plugin "gone" is`) {
		t.Errorf("a wait that runs out: %v", err)
	}
}

// TestPauseEndsWithTheAgent checks that a pause ends when the agent ends. A stop must not end, even
// if the plugin was paused before.
func TestPauseEndsWithTheAgent(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	must(t, b.sup.Pause("fake", false))
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	b.reload()
	if st := b.status("fake"); st.State != supervisor.Stopped || alive(first.PID) {
		t.Errorf("paused: %+v", st)
	}
	b.stop()
	if b.record(t, "fake").Stopped {
		t.Error("a pause is on record as a stop")
	}
	b.start()
	b.await("fake", supervisor.Ready)

	must(t, b.sup.Pause("fake", false))
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	must(t, b.sup.Stop("fake", false))
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	must(t, b.sup.Pause("fake", false)) // a pause of a stopped plugin must not end the stop
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	b.stop()
	if !b.record(t, "fake").Stopped {
		t.Error("a stop after a pause is not on record")
	}
	b.start()
	must(t, b.sup.AwaitStopped(within(t), "fake"))
	if st := b.status("fake"); st.State != supervisor.Stopped {
		t.Errorf("stopped, and the agent started again: %+v", st)
	}
}
