package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestStartsAndIsReadyAtOnce checks that a plugin becomes ready before the probe interval has
// passed.
func TestStartsAndIsReadyAtOnce(t *testing.T) {
	b := newBench(t)
	b.set("env", "")
	t.Setenv("NOTIFY_SOCKET", "/must/not/leak")
	b.file("fake.yaml", b.fakeFile("    NODE: ${NODE_ID}/${PLUGIN_ID}\n    PLACES: ${STATE_DIR} ${MOUNT_ROOT}\n", "health: {interval: 1h}\n"))
	var mu sync.Mutex
	var told []string
	b.opts.OnChange = func(c supervisor.Change) { mu.Lock(); defer mu.Unlock(); told = append(told, c.Plugin) }
	b.start()
	st := b.await("fake", supervisor.Ready)

	pid := b.starts()[0]
	if st.PID != pid || st.Restarts != 0 || st.Type != "node" || st.Runner != "exec" || st.Reason != "" || st.Pending != "" {
		t.Errorf("status %+v", st)
	}
	wantInfo := plugin.Info{ID: "fake", Driver: "fake.test", Version: "1.0", NodeID: "node-1", MaxVolumes: 3, HasNode: true}
	v := b.sup.View("fake")
	if !v.Known || !v.Ready || v.State != "ready" || v.Incarnation == 0 || fmt.Sprint(v.Info) != fmt.Sprint(wantInfo) {
		t.Errorf("view %+v", v)
	}
	c, err := b.sup.Client("fake")
	if err != nil {
		t.Fatal(err)
	}
	if ready, err := c.Probe(t.Context()); !ready || err != nil {
		t.Errorf("probe: %v, %v", ready, err)
	}
	// Wait, because the new state is visible shortly before the supervisor calls OnChange.
	await(t, "starting and ready to be told", func() bool { mu.Lock(); defer mu.Unlock(); return len(told) >= 2 })
	mu.Lock()
	if !slices.Equal(told, []string{"fake", "fake"}) {
		t.Errorf("OnChange told %v", told)
	}
	mu.Unlock()

	env := b.fake.text("env", "")
	for _, want := range []string{"NODE=node-1/fake", "PLACES=" + b.dir + "/d/plugins/fake/state " + b.dir + "/d/csi/fake",
		"CSI_ENDPOINT=unix://" + b.dir + "/r/plugins/fake/csi.sock", "VOLAGENT_INCARNATION="} {
		if !strings.Contains(env, want) {
			t.Errorf("environment lacks %q:\n%s", want, env)
		}
	}
	if strings.Contains(env, "NOTIFY_SOCKET") {
		t.Error("the agent's environment leaks")
	}
	for path, mode := range map[string]os.FileMode{"r/plugins/fake": 0o700, "d/plugins/fake": 0o700, "d/plugins/fake/state": 0o700,
		"d/csi": 0o711, "d/csi/fake": 0o711, "d/plugins/fake/plugin.log": 0o600} {
		if info, err := os.Stat(filepath.Join(b.dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	// The plugin must have its own session, and therefore its own process group.
	if sid, err := getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d of process %d, %v", sid, pid, err)
	}
	if lines, err := b.sup.LogTail("fake", 10); err != nil || len(lines) != 1 || !strings.HasPrefix(lines[0], "fake plugin started") {
		t.Errorf("log %q, %v", lines, err)
	}
}

func getsid(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}

func TestCrashIsSeenAndMended(t *testing.T) {
	b := newBench(t)
	// The pause is long, so that the test can observe it.
	b.opts.Backoff = supervisor.Backoff{Base: 2 * time.Second}
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	first := b.await("fake", supervisor.Ready)
	before := b.sup.View("fake")

	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	st := b.await("fake", supervisor.BackingOff)
	if st.Reason != "process killed by signal 9 (SIGKILL)" || st.LastExit != "" && st.LastExit != "killed by signal 9 (SIGKILL)" ||
		st.Next.IsZero() || st.PID != 0 && st.PID != first.PID {
		t.Errorf("status %+v", st)
	}
	v := b.sup.View("fake")
	if v.Ready || !v.Known || v.Info.Driver != "fake.test" {
		t.Errorf("view while down: %+v", v)
	}
	_, err := b.sup.Client("fake")
	if !errors.Is(err, volume.ErrPluginUnavailable) || !strings.Contains(err.Error(), "backing-off") || !strings.Contains(err.Error(), "SIGKILL") ||
		!strings.Contains(err.Error(), "next start in") || !strings.Contains(err.Error(), "fake plugin started") {
		t.Errorf("client while down: %v", err)
	}
	st = b.await("fake", supervisor.Ready)
	after := b.sup.View("fake")
	if st.Restarts != 1 || st.PID == first.PID || after.Incarnation == before.Incarnation || st.LastExit != "killed by signal 9 (SIGKILL)" {
		t.Errorf("after: %+v, incarnation %d and before %d", st, after.Incarnation, before.Incarnation)
	}
}

// TestManyKills kills a plugin fifty times in a row. The agent must notice the end each time, and
// restart the plugin.
func TestManyKills(t *testing.T) {
	b := newBench(t)
	b.opts.Backoff = supervisor.Backoff{Base: time.Millisecond}
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	st := b.await("fake", supervisor.Ready)
	for i := range 50 {
		pid := st.PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		st = b.awaitThat("fake", "ready again", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID != pid })
		if st.PID == 0 {
			t.Fatal("ready, and without a process")
		}
		if st.Restarts != i+1 {
			t.Fatalf("%d restarts after %d kills", st.Restarts, i+1)
		}
	}
	if n := len(b.starts()); n != 51 {
		t.Errorf("%d starts", n)
	}
}

func TestStaleSocket(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	dir := filepath.Join(b.dir, "r/plugins/fake")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/csi.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.await("fake", supervisor.Ready)
}

// TestSocketInTheWay checks an existing socket at the plugin's path. The agent must remove the
// socket only if no process serves it.
func TestSocketInTheWay(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	socket := filepath.Join(b.dir, "r/plugins/fake/csi.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	stop := b.serve(socket)
	b.start()
	st := b.await("fake", supervisor.BackingOff)
	if !strings.Contains(st.Reason, fmt.Sprintf("another process (pid %d) answers", os.Getpid())) {
		t.Errorf("reason %q", st.Reason)
	}
	stop()
	b.await("fake", supervisor.Ready)
	b.stop()
	kill(t, b.starts()[0])

	if err := errors.Join(os.Remove(socket), os.WriteFile(socket, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.start()
	st = b.await("fake", supervisor.BackingOff)
	if data, err := os.ReadFile(socket); err != nil || string(data) != "precious" || !strings.Contains(st.Reason, "not a socket") {
		t.Errorf("%q, %v; reason %q", data, err, st.Reason)
	}
}

// TestCannotStart checks the message for each way in which a start can fail.
func TestCannotStart(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(b.dir+"/plain", []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.file("a.yaml", "id: missing\nexec: {command: [/no/such/plugin]}\n")
	b.file("b.yaml", "id: nowhere\nexec: {command: [no-such-plugin-in-path]}\n")
	b.file("c.yaml", fmt.Sprintf("id: plain\nexec: {command: [%s/plain]}\n", b.dir))
	b.file("d.yaml", fmt.Sprintf("id: directory\nexec: {command: [%s]}\n", b.dir))
	b.file("e.yaml", "id: secret\nexec: {command: [/bin/true], env: {A: {file: /no/such/secret}}}\n")
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	for id, want := range map[string]string{
		"missing":   `cannot run "/no/such/plugin": no such file or directory`,
		"nowhere":   `cannot run "no-such-plugin-in-path": executable file not found in $PATH`,
		"plain":     `cannot run "` + b.dir + `/plain": permission denied`,
		"directory": `cannot run "` + b.dir + `": is a directory`,
		"secret":    `cannot read the secret for A: this agent cannot resolve secrets`,
	} {
		if st := b.await(id, supervisor.BackingOff); st.Reason != want || st.Next.IsZero() {
			t.Errorf("%s: %q, want %q", id, st.Reason, want)
		}
	}
	b.await("fake", supervisor.Ready)
}

func TestExitsAtOnce(t *testing.T) {
	b := newBench(t)
	b.set("exit", "")
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	st := b.awaitThat("fake", "restarted thrice", func(st supervisor.Status) bool { return st.State == supervisor.BackingOff && st.Restarts >= 3 })
	if st.Reason != "process exited with status 3 before it was ready" {
		t.Errorf("reason %q", st.Reason)
	}
	if !slices.Contains(st.LastLog, "fatal: cannot work like this") {
		t.Errorf("log %q", st.LastLog)
	}
	b.unset("exit")
	b.await("fake", supervisor.Ready)
}

func TestNeverOpensItsSocket(t *testing.T) {
	b := newBench(t)
	b.set("silent", "")
	b.file("fake.yaml", b.fakeFile("", "health: {start_timeout: 1s}\n"))
	b.start()
	st := b.await("fake", supervisor.BackingOff)
	if want := "not ready after 1s: it has not opened its socket " + b.dir + "/r/plugins/fake/csi.sock"; st.Reason != want {
		t.Errorf("reason %q, want %q", st.Reason, want)
	}
	b.unset("silent")
	b.await("fake", supervisor.Ready)
	if pid := b.starts()[0]; alive(pid) {
		t.Errorf("process %d, which was given up, is left", pid)
	}
}

func TestNotReadyAtFirst(t *testing.T) {
	b := newBench(t)
	b.set("not-ready", "")
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	st := b.awaitThat("fake", "asked", func(st supervisor.Status) bool { return strings.Contains(st.Reason, "says that it is not ready yet") })
	if st.State != supervisor.Starting {
		t.Errorf("status %+v", st)
	}
	if _, err := b.sup.Client("fake"); !errors.Is(err, volume.ErrPluginUnavailable) {
		t.Errorf("client: %v", err)
	}
	b.unset("not-ready")
	if st := b.await("fake", supervisor.Ready); st.Restarts != 0 || len(b.starts()) != 1 {
		t.Errorf("status %+v", st)
	}
	// If a plugin becomes ready once and later reports that it is not ready, the agent must not
	// kill the plugin. The plugin is only unhealthy.
	b.stop()
	b.file("fake.yaml", b.fakeFile("", quick))
	b.start()
	b.await("fake", supervisor.Ready)
	n := len(b.starts())
	b.set("not-ready", "")
	b.await("fake", supervisor.Unhealthy)
	b.unset("not-ready")
	if st := b.await("fake", supervisor.Ready); len(b.starts()) != n || st.Restarts != 0 {
		t.Errorf("it was restarted: %+v", st)
	}
}

// TestHangIsRestarted checks that the agent restarts a plugin that hangs. The agent must signal
// only the plugin's main process, not the other processes in its group.
func TestHangIsRestarted(t *testing.T) {
	b := newBench(t)
	b.set("daemon", "")
	// The pause is long, so that the test can observe it.
	b.opts.Backoff = supervisor.Backoff{Base: time.Second}
	b.file("fake.yaml", b.fakeFile("", hangsSoon))
	b.start()
	first := b.await("fake", supervisor.Ready)
	daemon := b.fake.text("daemon", "")
	pid, err := strconv.Atoi(daemon)
	if err != nil {
		t.Fatal(err)
	}
	defer kill(t, pid)
	b.unset("daemon")
	b.set("hang", "")
	st := b.await("fake", supervisor.BackingOff)
	if !strings.Contains(st.Reason, "hangs: 3 probes in a row failed, the last with Probe: DeadlineExceeded") {
		t.Errorf("reason %q", st.Reason)
	}
	b.unset("hang")
	st = b.await("fake", supervisor.Ready)
	if st.Restarts < 1 || alive(first.PID) || st.LastExit != "killed by signal 15 (SIGTERM)" {
		t.Errorf("status %+v, old process alive: %v", st, alive(first.PID))
	}
	if !alive(pid) {
		t.Error("the daemon in the plugin's group did not survive")
	}
}

func TestFailedProbesAreForgivenBelowTheLimit(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1s}\n"))
	b.start()
	b.await("fake", supervisor.Ready)
	b.set("probe-fails", "")
	st := b.await("fake", supervisor.Unhealthy)
	b.unset("probe-fails")
	if st.Reason != "probe 1 of 3 failed: Probe: Internal: no storage in sight" {
		t.Errorf("reason %q", st.Reason)
	}
	if b.sup.View("fake").Ready {
		t.Error("an unhealthy plugin is ready")
	}
	if st := b.await("fake", supervisor.Ready); st.Restarts != 0 || len(b.starts()) != 1 {
		t.Errorf("status %+v", st)
	}
}

func TestRestartOnRequest(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.inUse.Store(true) // volumes in use must not prevent the restart
	b.start()
	first := b.await("fake", supervisor.Ready)
	if err := b.sup.Restart("fake", true); err != nil {
		t.Fatal(err)
	}
	st := b.awaitThat("fake", "another process", func(st supervisor.Status) bool {
		return st.State == supervisor.Ready && st.PID != first.PID
	})
	if alive(first.PID) || st.LastExit != "killed by signal 15 (SIGTERM)" {
		t.Errorf("status %+v", st)
	}
	if err := b.sup.Restart("none", false); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("unknown plugin: %v", err)
	}
}

// TestWrongDriver checks a plugin that reports a different driver than before. The agent must
// refuse this plugin.
func TestWrongDriver(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	b.await("fake", supervisor.Ready)
	b.stop()
	kill(t, b.starts()[0])

	b.set("driver", "other.test")
	b.start()
	st := b.await("fake", supervisor.Failed)
	if !strings.Contains(st.Reason, `driver "other.test" answers, and plugin "fake" has been driver "fake.test"`) {
		t.Errorf("reason %q", st.Reason)
	}
	if _, err := b.sup.Client("fake"); !errors.Is(err, volume.ErrPluginUnavailable) {
		t.Errorf("client: %v", err)
	}
	if got := b.record(t, "fake").Info.Driver; got != "fake.test" || b.sup.View("fake").Info.Driver != "fake.test" {
		t.Errorf("recorded driver %q", got)
	}
	await(t, "the end of the wrong driver", func() bool { return !alive(b.starts()[1]) })
	// When the plugin reports the right driver again, it is used after the agent reads the plugin's
	// file again.
	b.unset("driver")
	b.reload()
	b.await("fake", supervisor.Ready)
}

func TestSecretsGoToTheChildOnly(t *testing.T) {
	b := newBench(t)
	b.opts.Secrets = resolver{"/run/password": "hunter2-planted"}
	b.file("fake.yaml", b.fakeFile("    FAKE_SECRET: {file: /run/password}\n", ""))
	b.start()
	st := b.await("fake", supervisor.Ready)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", st.PID))
	if err != nil || !strings.Contains(string(env), "FAKE_SECRET=hunter2-planted") {
		t.Errorf("the child did not get it: %v", err)
	}
	lines, err := b.sup.LogTail("fake", 5)
	if err != nil || len(lines) != 1 || lines[0] != "fake plugin started, secret is ***" {
		t.Errorf("log %q, %v", lines, err)
	}
	if all := b.log.String() + b.text() + fmt.Sprintf("%+v", b.status("fake")); strings.Contains(all, "hunter2") {
		t.Errorf("the secret leaks:\n%s", all)
	}
}

type resolver map[string]string

func (r resolver) ResolveSecret(_ context.Context, ref call.SecretRef) (call.Secret, error) {
	v, ok := r[ref.File]
	if !ok {
		return call.Secret{}, fs.ErrNotExist
	}
	return call.NewSecret(v), nil
}

func TestBuiltin(t *testing.T) {
	b := newBench(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// In place of the agent's binary, a shell script runs. It records the flags that the agent
	// passes.
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" > %s/args\nexport %s=%s %s=%s\nexec %s\n", b.dir, envFake, b.fake, envRun, os.Getenv(envRun), exe)
	if err := os.WriteFile(b.dir+"/agent", []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	b.opts.BuiltinArgv = []string{b.dir + "/agent", "plugin-local"}
	b.start()
	st := b.await("local", supervisor.Ready)
	want := fmt.Sprintf("plugin-local --endpoint=unix://%[1]s/r/plugins/local/csi.sock --node-id=node-1 --state-dir=%[1]s/d/plugins/local/state\n", b.dir)
	if got := behaviour(b.dir).text("args", ""); got != want || st.Runner != "builtin" || st.File != "" {
		t.Errorf("arguments %q, want %q; %+v", got, want, st)
	}
}
