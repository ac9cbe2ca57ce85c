package supervisor_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestReattach checks that a new agent finds the plugin's running process and does not start a
// second one. The agent must notice the end of this process, and then start the next one.
func TestReattach(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	rec := b.record(t, "fake")
	if rec.Process.PID != first.PID || rec.Process.Nonce == "" || rec.Process.StartTime == 0 || rec.Process.Boot == "" || rec.Definition == nil {
		t.Errorf("record %+v", rec)
	}
	b.stop()
	if !alive(first.PID) {
		t.Fatal("the plugin went with the agent")
	}

	saves := b.saves
	b.start()
	st := b.await("fake", supervisor.Ready)
	if st.PID != first.PID || st.Restarts != 0 || len(b.starts()) != 1 {
		t.Errorf("re-attached: %+v, %d starts", st, len(b.starts()))
	}
	if b.saves != saves {
		t.Errorf("%d stores for nothing new", b.saves-saves)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	st = b.awaitThat("fake", "started anew", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID != first.PID })
	if st.Restarts != 1 || len(b.starts()) != 2 {
		t.Errorf("after its end: %+v", st)
	}
}

// TestDiedWhileNobodyWatched checks a process that ended while no agent ran. The next agent must
// treat the recorded process as ended, even if another process has the same pid now.
func TestDiedWhileNobodyWatched(t *testing.T) {
	other, started := bystander(t)
	for name, spoil := range map[string]func(*plugin.Process){
		"gone":       func(*plugin.Process) {},
		"pid reused": func(p *plugin.Process) { p.PID, p.StartTime = other, started+100 },
		"other boot": func(p *plugin.Process) { p.Boot, p.PID, p.StartTime = "an earlier boot", other, started },
		// A child of the ended plugin still runs and has the nonce, too.
		"nonce alone": func(p *plugin.Process) { p.PID, p.StartTime = 0, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.set("daemon", "")
			b.file("fake.yaml", b.fakeFile("", ""))
			b.start()
			b.await("fake", supervisor.Ready)
			b.stop()
			kill(t, b.starts()[0])
			child, err := strconv.Atoi(b.fake.text("daemon", ""))
			if err != nil || !alive(child) {
				t.Fatalf("no child: %v", err)
			}
			defer kill(t, child)
			b.unset("daemon")
			rec := b.record(t, "fake")
			spoil(&rec.Process)
			if err := b.SavePlugin(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
			b.start()
			if st := b.await("fake", supervisor.Ready); st.PID != b.starts()[1] || len(b.starts()) != 2 {
				t.Errorf("status %+v, starts %v", st, b.starts())
			}
		})
	}
}

// bystander starts a process that has nothing to do with plugins.
func bystander(t *testing.T) (pid int, start uint64) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // the error only says that the process was killed
	})
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(strings.Fields(string(data))[21], &start); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, start
}

// TestCrashBetweenForkAndSave checks a record that contains the nonce but not the pid. The agent
// must find the plugin's process by the nonce, although the plugin's children also have the nonce
// in their environment.
func TestCrashBetweenForkAndSave(t *testing.T) {
	b := newBench(t)
	b.set("daemon", "")
	b.file("fake.yaml", b.fakeFile("", ""))
	b.setDeny(func(r plugin.Record) error {
		if r.Process.PID != 0 {
			return errors.New("died before this")
		}
		return nil
	})
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.stop()
	if rec := b.record(t, "fake"); rec.Process.PID != 0 || rec.Process.Nonce == "" {
		t.Fatalf("record %+v", rec)
	}
	b.setDeny(nil)
	b.start()
	if st := b.await("fake", supervisor.Ready); st.PID != first.PID || len(b.starts()) != 1 {
		t.Errorf("status %+v, starts %v", st, b.starts())
	}
	if rec := b.record(t, "fake"); rec.Process.PID != first.PID {
		t.Errorf("the pid is still not on record: %+v", rec)
	}
}

// TestCrashBeforeTheSocket checks the same as TestCrashBetweenForkAndSave, for a plugin that has
// not opened its socket yet. The agent can find the plugin's process only by the nonce.
func TestCrashBeforeTheSocket(t *testing.T) {
	b := newBench(t)
	b.set("silent", "")
	b.file("fake.yaml", b.fakeFile("", ""))
	b.setDeny(func(r plugin.Record) error {
		if r.Process.PID != 0 {
			return errors.New("died before this")
		}
		return nil
	})
	b.start()
	await(t, "a start", func() bool { return len(b.starts()) == 1 })
	b.stop()
	b.start()
	b.awaitThat("fake", "found", func(st supervisor.Status) bool { return st.PID == b.starts()[0] })
	if n := len(b.starts()); n != 1 {
		t.Errorf("%d starts", n)
	}
}

// TestChangedWhileNobodyWatched checks a plugin file that changed while no agent ran. The next
// agent must stop the process, because it was started from the earlier definition.
func TestChangedWhileNobodyWatched(t *testing.T) {
	b := newBench(t)
	b.set("env", "")
	b.file("fake.yaml", b.fakeFile("    V: one\n", ""))
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.stop()
	b.file("fake.yaml", b.fakeFile("    V: two\n", ""))
	b.start()
	second := b.awaitThat("fake", "changed", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID != first.PID })
	if alive(first.PID) || !strings.Contains(b.fake.text("env", ""), "V=two") || second.Pending != "" {
		t.Errorf("status %+v", second)
	}
	b.stop()
	if err := os.Remove(b.dir + "/etc/fake.yaml"); err != nil {
		t.Fatal(err)
	}
	b.start()
	await(t, "the end of the plugin whose file is gone", func() bool { return !alive(second.PID) })
}

// TestIntentBeforeFork checks that the agent starts no process unless it has stored the intent.
func TestIntentBeforeFork(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	b.setDeny(func(plugin.Record) error { return errors.New("disk full") })
	b.start()
	st := b.await("fake", supervisor.BackingOff)
	if st.Reason != "cannot store that the plugin is being started: disk full" || len(b.starts()) != 0 {
		t.Errorf("status %+v, starts %v", st, b.starts())
	}
	b.setDeny(nil)
	b.await("fake", supervisor.Ready)
}

// TestStateLost checks an agent whose records are lost. If a process answers on the plugin's
// socket, the agent must recognize this process as its own plugin.
func TestStateLost(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.stop()
	b.mu.Lock()
	clear(b.recs)
	b.mu.Unlock()
	b.start()
	if st := b.await("fake", supervisor.Ready); st.PID != first.PID || len(b.starts()) != 1 {
		t.Errorf("status %+v, starts %v", st, b.starts())
	}
}

// TestHangWhileNobodyWatched checks a plugin that began to hang while no agent ran. The next agent
// must restart it after the start timeout.
func TestHangWhileNobodyWatched(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {timeout: 200ms, start_timeout: 1s}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	b.stop()
	b.set("hang", "")
	b.start()
	b.await("fake", supervisor.BackingOff)
	b.unset("hang")
	if st := b.await("fake", supervisor.Ready); st.PID == first.PID || alive(first.PID) {
		t.Errorf("status %+v", st)
	}
}

// TestStopIsQuick checks that the agent can end at once, in every state of its plugins.
func TestStopIsQuick(t *testing.T) {
	b := newBench(t)
	b.set("hang", "")
	b.opts.Backoff = supervisor.Backoff{Base: time.Hour, Max: time.Hour}
	b.file("fake.yaml", b.fakeFile("", "health: {timeout: 1h, start_timeout: 1h}\n"))
	b.file("gone.yaml", "id: gone\nexec: {command: [/no/such/plugin]}\n")
	b.file("bad.yaml", "id: bad\n")
	b.file("socket.yaml", "id: socket\nsocket: /no/such/socket\n")
	b.start()
	await(t, "a start", func() bool { return len(b.starts()) == 1 })
	b.await("gone", supervisor.BackingOff)
	b.await("bad", supervisor.Failed)
	b.await("socket", supervisor.Unhealthy)
	begin := time.Now()
	b.stop()
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("the end took %s", took)
	}
	if !alive(b.starts()[0]) {
		t.Error("the plugin was stopped with the agent")
	}
}

// TestSocketPlugin checks a plugin that another program runs. The program makes, replaces and
// removes the plugin's socket.
func TestSocketPlugin(t *testing.T) {
	b := newBench(t)
	socket := filepath.Join(b.dir, "x.sock")
	b.file("x.yaml", "id: x\nsocket: "+socket+"\n"+quick)
	b.start()
	st := b.await("x", supervisor.Unhealthy)
	if st.Reason != "socket "+socket+" does not exist" || st.Runner != "socket" || st.LogFile != "" {
		t.Errorf("status %+v", st)
	}
	if _, err := b.sup.LogTail("x", 1); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("log: %v", err)
	}

	// No process accepts connections on this socket.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.awaitThat("x", "told that nobody listens", func(st supervisor.Status) bool { return st.Reason == "no process listens on socket "+socket })
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}

	stop := b.serve(socket)
	st = b.await("x", supervisor.Ready)
	if st.PID != os.Getpid() || st.Restarts != 0 {
		t.Errorf("made: %+v", st)
	}
	one := b.sup.View("x").Incarnation

	stop() // stop also removes the socket
	b.await("x", supervisor.Unhealthy)
	stop = b.serve(socket)
	st = b.await("x", supervisor.Ready)
	two := b.sup.View("x").Incarnation
	if two == one || st.Restarts != 1 {
		t.Errorf("made again: incarnation %d after %d, %+v", two, one, st)
	}

	// Replace the socket while the old server still serves the agent's connection.
	if err := os.Rename(socket, socket+".old"); err != nil {
		t.Fatal(err)
	}
	b.serve(socket)
	b.awaitThat("x", "connected to the other", func(st supervisor.Status) bool {
		return st.State == supervisor.Ready && b.sup.View("x").Incarnation > two
	})

	// When the old server ends, it removes the file at its path, which is now the new socket. After
	// that, no client can connect.
	stop()
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the socket is still there: %v", err)
	}
	b.await("x", supervisor.Unhealthy)
}

// TestSocketPluginIsNeverRestarted checks a plugin that another program runs and that hangs. The
// plugin must be unhealthy, and become ready when it answers again.
func TestSocketPluginIsNeverRestarted(t *testing.T) {
	b := newBench(t)
	socket := filepath.Join(b.dir, "x.sock")
	b.serve(socket)
	b.file("x.yaml", "id: x\nsocket: "+socket+"\n"+hangsSoon)
	b.start()
	b.await("x", supervisor.Ready)
	before := b.sup.View("x").Incarnation
	b.set("hang", "")
	b.awaitThat("x", "given up", func(st supervisor.Status) bool {
		return st.State == supervisor.Unhealthy && (strings.HasPrefix(st.Reason, "hangs") || strings.HasPrefix(st.Reason, "not ready yet"))
	})
	b.unset("hang")
	if st := b.await("x", supervisor.Ready); st.Restarts != 0 || b.sup.View("x").Incarnation != before {
		t.Errorf("the same server counts as another: %+v", st)
	}
}

func TestSocketPluginWrongDriver(t *testing.T) {
	b := newBench(t)
	socket := filepath.Join(b.dir, "x.sock")
	stop := b.serve(socket)
	b.file("x.yaml", "id: x\nsocket: "+socket+"\n"+quick)
	b.start()
	b.await("x", supervisor.Ready)
	stop()
	b.set("driver", "other.test")
	stop = b.serve(socket)
	if st := b.await("x", supervisor.Failed); !strings.Contains(st.Reason, "other.test") {
		t.Errorf("reason %q", st.Reason)
	}
	// The plugin reports the right driver again, but no event tells the agent about this.
	stop()
	b.unset("driver")
	b.serve(socket)
	b.await("x", supervisor.Ready)
}

func TestTypeMustBeTrue(t *testing.T) {
	b := newBench(t)
	for typ, want := range map[string]string{"controller": "it has no controller service", "monolith": "it has no controller service", "node": ""} {
		b.file("fake.yaml", b.fakeFile("", "type: "+typ+"\n"))
		b.start()
		state := supervisor.Failed
		if want == "" {
			state = supervisor.Ready
		}
		if st := b.await("fake", state); !strings.HasSuffix(st.Reason, want) || st.Type != typ {
			t.Errorf("%s: %+v", typ, st)
		}
		b.stop()
		b.killAll()
	}
}

// TestLongPaths checks that the agent refuses a plugin file whose socket path is too long.
func TestLongPaths(t *testing.T) {
	b := newBench(t)
	b.opts.RuntimeDir = b.dir + "/" + strings.Repeat("r", 90)
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	if st := b.await("fake", supervisor.Failed); !strings.Contains(st.Reason, "a unix socket's path has at most 107; choose a shorter --runtime-dir") {
		t.Errorf("reason %q", st.Reason)
	}
}

// TestQuiet checks that a running plugin causes no work for the agent, except one probe in each
// interval.
func TestQuiet(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	st := b.await("fake", supervisor.Ready)
	since := st.Since
	for range 3 {
		b.sup.Released("fake")
		b.reload()
	}
	if st := b.await("fake", supervisor.Ready); st.Since != since || len(b.starts()) != 1 {
		t.Errorf("reading the same files again changed something: %+v", st)
	}
	if n := strings.Count(b.log.String(), "\n"); n > 6 {
		t.Errorf("%d lines of log:\n%s", n, b.log)
	}
}
