package main_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest"
)

// refuse starts an agent that must fail to start. It returns the agent's output.
func (h *host) refuse(more ...string) string {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "volagent"), append(h.args(), more...)...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	if err == nil {
		h.t.Fatalf("an agent with %v started:\n%s", more, out)
	}
	return string(out)
}

// TestNotify checks that the agent notifies systemd when the agent is ready, reloads and stops. It
// also checks that the agent sends watchdog messages.
func TestNotify(t *testing.T) {
	h := newHost(t)
	at := &net.UnixAddr{Name: filepath.Join(h.dir, "notify"), Net: "unixgram"}
	l, err := net.ListenUnixgram("unixgram", at)
	h.must(err)
	t.Cleanup(func() { h.must(l.Close()) })
	h.must(l.SetReadDeadline(time.Now().Add(100 * time.Second)))
	h.env = append(h.env, "NOTIFY_SOCKET="+at.Name, "WATCHDOG_USEC=200000")
	expect := func(want string) string {
		t.Helper()
		for buf := make([]byte, 4096); ; {
			n, err := l.Read(buf)
			if err != nil {
				t.Fatalf("no %s: %v", want, err)
			}
			if msg := string(buf[:n]); strings.Contains(msg, want) {
				return msg
			}
		}
	}
	h.start()
	expect("READY=1")
	expect("WATCHDOG=1")
	h.must(h.cmd.Process.Signal(syscall.SIGHUP))
	if msg := expect("RELOADING=1"); !strings.Contains(msg, "MONOTONIC_USEC=") {
		t.Errorf("a reload without its time: %q", msg)
	}
	expect("READY=1")
	h.must(h.signal(syscall.SIGTERM))
	expect("STOPPING=1")
}

// TestReload checks that SIGHUP applies a new log level and new plugin files. A reload with an
// invalid configuration changes nothing.
func TestReload(t *testing.T) {
	h := newHost(t)
	config := filepath.Join(h.dir, "volagent.yaml")
	logged := func(words string) func() bool {
		return func() bool {
			raw, err := os.ReadFile(h.log.Name())
			h.must(err)
			return bytes.Contains(raw, []byte(words))
		}
	}
	level := func(l string) { h.must(os.WriteFile(config, []byte("log_level: "+l+"\n"), 0o644)) }
	h.flags = []string{"--log-level"} // the configuration file sets the level
	level("info")
	h.start("local")
	h.volctl("volume", "create", "a", "--plugin", "local")
	h.volctl("volume", "claim", "a")
	if logged("step done")() {
		t.Fatal("debug lines at level info")
	}
	level("debug")
	h.must(os.WriteFile(filepath.Join(h.dir, "plugins.d", "x.yaml"), []byte("id: x\nsocket: /nosuch.sock\n"), 0o644))
	h.must(h.cmd.Process.Signal(syscall.SIGHUP))
	h.await("the reload", logged("reloaded"))
	h.volctl("volume", "detach", "a")
	if !logged("step done")() {
		t.Error("no debug lines after the reload")
	}
	if out := h.volctl("plugin", "list", "-q"); !strings.Contains(out, "x") {
		t.Errorf("the new plugin is not there:\n%s", out)
	}
	h.must(os.WriteFile(config, []byte("nonsense: 1\n"), 0o644))
	h.must(h.cmd.Process.Signal(syscall.SIGHUP))
	h.await("the refusal", logged("unknown key"))
	h.volctl("volume", "claim", "a")
}

// TestPluginFilesAreNoticed checks that the agent applies changed plugin files without a signal.
func TestPluginFilesAreNoticed(t *testing.T) {
	h := newHost(t)
	h.start()
	listed := func(id string) func() bool {
		return func() bool { return slices.Contains(strings.Fields(h.volctl("plugin", "list", "-q")), id) }
	}
	file := filepath.Join(h.dir, "plugins.d", "x.yaml")
	h.must(os.WriteFile(file+".new", []byte("id: x\nsocket: /nosuch.sock\n"), 0o644))
	h.must(os.Rename(file+".new", file))
	h.await("the new plugin", listed("x"))
	h.must(os.Remove(file))
	h.await("its end", func() bool { return !listed("x")() })
}

// TestIdentity checks that the agent keeps the node id of its first start. While a claim exists,
// the agent refuses another node id and another data dir.
func TestIdentity(t *testing.T) {
	h := newHost(t)
	h.start("local")
	h.volctl("volume", "create", "a", "--plugin", "local")
	h.volctl("volume", "claim", "a")
	h.must(h.signal(syscall.SIGTERM))

	h.flags = []string{"--node-id"}
	h.start("local")
	if id := h.volctl("node", "status", "-o", "go-template={{.id}}"); id != "test-host" {
		t.Errorf("the node id became %q", id)
	}
	h.must(h.signal(syscall.SIGTERM))

	if out := h.refuse("--node-id", "other"); !strings.Contains(out, "cannot change the node id") {
		t.Errorf("another node id: %s", out)
	}
	moved := filepath.Join(h.dir, "e")
	h.must(os.Mkdir(moved, 0o711))
	copyFile(t, filepath.Join(h.dir, "d", "state.db"), filepath.Join(moved, "state.db"))
	if out := h.refuse("--data-dir", moved); !strings.Contains(out, "move it back") {
		t.Errorf("a moved data dir: %s", out)
	}

	h.start("local")
	h.volctl("volume", "detach", "a")
	h.must(h.signal(syscall.SIGTERM))
	h.flags = nil
	h.more = []string{"--node-id", "other"}
	h.start("local")
	if id := h.volctl("node", "status", "-o", "go-template={{.id}}"); id != "other" {
		t.Errorf("with nothing attached the node id stayed %q", id)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestOtherNamespace starts an agent in a mount namespace without the previous agent's mounts. The
// agent sends no CSI call, reports the other mount namespace, and still answers requests.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.kill()
	mark := h.mark()
	h.wrap = []string{"unshare", "--mount", "--propagation", "private"}
	h.start()
	if r := h.try("volume", "create", "other", "--plugin", "rec"); r.code != 4 || !strings.Contains(r.err, "namespace") {
		t.Errorf("a create: exit %d, %s", r.code, r.err)
	}
	h.expect(mark)
	if out := h.volctl("node", "status"); !strings.Contains(out, "another mount namespace") {
		t.Errorf("node status says\n%s", out)
	}
	if r := h.try("volume", "claim", "data", "--alloc", "b"); r.code != 4 || !strings.Contains(r.err, "namespace") {
		t.Errorf("a claim: exit %d, %s", r.code, r.err)
	}
	h.volctl("volume", "detach", "data", "a", "--no-wait")
	h.kill()
	h.wrap = nil
	h.start("rec")
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.allGone()
}

// TestBothKilled kills the agent and the plugin at the same time. The next agent restarts the
// plugin and leaves the plugin's mounts untouched.
func TestBothKilled(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	file := h.writer(h.volctl("volume", "claim", "data", "--alloc", "a"))
	mounts, pid, mark := h.mounts(), h.pluginPID("rec"), h.mark()
	h.kill()
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	h.start("rec")
	if h.pluginPID("rec") == pid {
		t.Error("the plugin is still the old one")
	}
	h.await("the volume to be looked at", func() bool { return strings.Contains(h.volctl("volume", "list"), " mounted ") })
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.expect(mark)
	was := size(file)
	h.await("the writer to go on", func() bool { return size(file) > was })
}

// TestReboot checks that the agent mounts every claim again after a reboot without any command.
// Each claim keeps its path, and the agent does not repeat ControllerPublishVolume.
func TestReboot(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-multi-writer")
	for _, alloc := range []string{"a", "b"} {
		h.volctl("volume", "claim", "data", "--alloc", alloc)
	}
	claims := h.volctl("claim", "list", "-o", "json")
	h.kill()
	h.stopPlugins()
	lines := strings.Split(strings.TrimSpace(h.mounts()), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		h.must(syscall.Unmount(strings.Fields(line)[4], 0))
	}
	h.must(os.RemoveAll(filepath.Join(h.dir, "run")))
	const bootID = "/proc/sys/kernel/random/boot_id"
	next := filepath.Join(h.dir, "boot_id")
	h.must(os.WriteFile(next, []byte("00000000-0000-4000-8000-000000000001\n"), 0o444))
	h.must(syscall.Mount(next, bootID, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { h.must(syscall.Unmount(bootID, 0)) })
	mark := h.mark()

	h.start("rec")
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "30s")
	h.expect(mark, csitest.NodeStage, csitest.NodePublish, csitest.NodePublish)
	if got := h.volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
}

// TestStopWithHungPlugin checks that the agent exits in time while a plugin hangs. The claim
// remains in the database, and the next agent mounts its volume.
func TestStopWithHungPlugin(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", nil)
	h.register("data", "single-node-writer")
	h.fault(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	h.volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.await("the call", func() bool { return h.calls(0).Count(csitest.NodeStage) == 1 })
	ended := make(chan error, 1)
	h.must(h.cmd.Process.Signal(syscall.SIGTERM))
	go func() { ended <- h.cmd.Wait() }()
	select {
	case err := <-ended:
		h.must(err)
	case <-time.After(40 * time.Second): // the agent promises 10 s, but this host may be busy
		t.Fatal("the agent did not end within 40 s")
	}
	h.must(h.cfg.Faults().Clear())
	h.start("rec")
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
}

// TestReaders checks a user other than root whom the socket's mode admits. The user can read the
// state but not change it. The user can also read the files of a volume.
func TestReaders(t *testing.T) {
	h := newHost(t)
	h.start("local")
	h.volctl("volume", "create", "data", "--plugin", "local")
	path := h.volctl("volume", "claim", "data")
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
	h.must(os.Chmod(binDir, 0o755))
	h.must(os.Chmod(h.socket(), 0o666))
	nobody := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = h.env
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput() // the exit code tells whether the command failed
		return string(out), cmd.ProcessState.ExitCode()
	}
	volctl := filepath.Join(binDir, "volctl")
	if out, code := nobody(volctl, "volume", "list"); code != 0 || !strings.Contains(out, "data") {
		t.Errorf("list: exit %d\n%s", code, out)
	}
	for _, args := range [][]string{
		{"volume", "claim", "data", "--alloc", "x"}, {"volume", "detach", "data"}, {"volume", "create", "x", "--plugin", "local"},
		{"volume", "deregister", "data", "-force", "-y"}, {"volume", "delete", "data", "-y"},
		{"plugin", "restart", "local", "-y"}, {"plugin", "stop", "local", "--no-wait"}, {"plugin", "start", "local"},
		{"plugin", "logs", "local"}, {"state", "backup", "-"},
	} {
		if out, code := nobody(append([]string{volctl}, args...)...); code != 8 || !strings.Contains(out, "hint:") {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
	for _, args := range [][]string{{"plugin", "status", "local", "-o", "json"}, {"node", "status", "-o", "json"}, {"plugin", "list", "-o", "json"}} {
		if out := h.volctl(args...); !strings.Contains(out, `"last_log"`) {
			t.Errorf("%v: the log is not shown to root:\n%s", args, out)
		}
		if out, code := nobody(append([]string{volctl}, args...)...); code != 0 || strings.Contains(out, `"last_log"`) {
			t.Errorf("%v: exit %d, and another user sees a plugin's log:\n%s", args, code, out)
		}
	}
	if out, code := nobody("cat", filepath.Join(path, "file")); code != 0 || out != "kept" {
		t.Errorf("another user reads: exit %d\n%s", code, out)
	}
	if out, code := nobody("cat", filepath.Join(h.dir, "d/state.db")); code == 0 {
		t.Errorf("another user reads the state database: %d bytes", len(out))
	}
	var claims []map[string]any
	h.must(json.Unmarshal([]byte(h.volctl("claim", "list", "-o", "json")), &claims))
	if len(claims) != 1 {
		t.Errorf("claims: %v", claims)
	}
}
