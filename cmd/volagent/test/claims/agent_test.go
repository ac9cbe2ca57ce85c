package claims_test

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

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestNotify checks that the agent notifies systemd when the agent is ready, reloads and stops. It
// also checks that the agent sends watchdog messages.
func TestNotify(t *testing.T) {
	h := harness.NewHost(t)
	at := &net.UnixAddr{Name: filepath.Join(h.Dir, "notify"), Net: "unixgram"}
	l, err := net.ListenUnixgram("unixgram", at)
	h.Must(err)
	t.Cleanup(func() { h.Must(l.Close()) })
	h.Must(l.SetReadDeadline(time.Now().Add(100 * time.Second)))
	h.Env = append(h.Env, "NOTIFY_SOCKET="+at.Name, "WATCHDOG_USEC=200000")
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
	h.Start()
	expect("READY=1")
	expect("WATCHDOG=1")
	h.Must(h.Cmd.Process.Signal(syscall.SIGHUP))
	if msg := expect("RELOADING=1"); !strings.Contains(msg, "MONOTONIC_USEC=") {
		t.Errorf("a reload without its time: %q", msg)
	}
	expect("READY=1")
	h.Must(h.Signal(syscall.SIGTERM))
	expect("STOPPING=1")
}

// TestReload checks that SIGHUP applies a new log level and new plugin files. A reload with an
// invalid configuration changes nothing.
func TestReload(t *testing.T) {
	h := harness.NewHost(t)
	config := filepath.Join(h.Dir, "volagent.yaml")
	logged := func(words string) func() bool {
		return func() bool {
			raw, err := os.ReadFile(h.Log.Name())
			h.Must(err)
			return bytes.Contains(raw, []byte(words))
		}
	}
	level := func(l string) { h.Must(os.WriteFile(config, []byte("log_level: "+l+"\n"), 0o644)) }
	h.OmitFlags = []string{"--log-level"} // the configuration file sets the log level
	level("info")
	h.Start("local")
	h.Volctl("volume", "create", "a", "--plugin", "local")
	h.Volctl("volume", "claim", "a")
	if logged("step done")() {
		t.Fatal("debug lines at level info")
	}
	level("debug")
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "x.yaml"), []byte("id: x\nsocket: /nosuch.sock\n"), 0o644))
	h.Must(h.Cmd.Process.Signal(syscall.SIGHUP))
	h.Await("the reload", logged("reloaded"))
	h.Volctl("volume", "detach", "a")
	if !logged("step done")() {
		t.Error("no debug lines after the reload")
	}
	if out := h.Volctl("plugin", "list", "-q"); !strings.Contains(out, "x") {
		t.Errorf("the new plugin is not there:\n%s", out)
	}
	h.Must(os.WriteFile(config, []byte("nonsense: 1\n"), 0o644))
	h.Must(h.Cmd.Process.Signal(syscall.SIGHUP))
	h.Await("the refusal", logged("unknown key"))
	h.Volctl("volume", "claim", "a")
}

// TestPluginFilesAreNoticed checks that the agent applies changed plugin files without a signal.
func TestPluginFilesAreNoticed(t *testing.T) {
	h := harness.NewHost(t)
	h.Start()
	listed := func(id string) func() bool {
		return func() bool { return slices.Contains(strings.Fields(h.Volctl("plugin", "list", "-q")), id) }
	}
	file := filepath.Join(h.Dir, "plugins.d", "x.yaml")
	h.Must(os.WriteFile(file+".new", []byte("id: x\nsocket: /nosuch.sock\n"), 0o644))
	h.Must(os.Rename(file+".new", file))
	h.Await("the new plugin", listed("x"))
	h.Must(os.Remove(file))
	h.Await("its end", func() bool { return !listed("x")() })
}

// TestIdentity checks that the agent keeps the node id of its first start. While a claim exists,
// the agent refuses another node id and another data dir.
func TestIdentity(t *testing.T) {
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "a", "--plugin", "local")
	h.Volctl("volume", "claim", "a")
	h.Must(h.Signal(syscall.SIGTERM))

	h.OmitFlags = []string{"--node-id"}
	h.Start("local")
	if id := h.Volctl("node", "status", "-o", "go-template={{.id}}"); id != "test-host" {
		t.Errorf("the node id became %q", id)
	}
	h.Must(h.Signal(syscall.SIGTERM))

	if out := h.StartFails("--node-id", "other"); !strings.Contains(out, "cannot change the node id") {
		t.Errorf("another node id: %s", out)
	}
	moved := filepath.Join(h.Dir, "e")
	h.Must(os.Mkdir(moved, 0o711))
	harness.CopyFile(t, filepath.Join(h.Dir, "d", "state.db"), filepath.Join(moved, "state.db"))
	if out := h.StartFails("--data-dir", moved); !strings.Contains(out, "move it back") {
		t.Errorf("a moved data dir: %s", out)
	}

	h.Start("local")
	h.Volctl("volume", "detach", "a")
	h.Must(h.Signal(syscall.SIGTERM))
	h.OmitFlags = nil
	h.MoreArgs = []string{"--node-id", "other"}
	h.Start("local")
	if id := h.Volctl("node", "status", "-o", "go-template={{.id}}"); id != "other" {
		t.Errorf("with nothing attached the node id stayed %q", id)
	}
}

// TestOtherNamespace starts an agent in a mount namespace without the previous agent's mounts. The
// agent sends no CSI call, reports the other mount namespace, and still answers requests.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Kill()
	mark := h.Mark()
	h.Wrapper = []string{"unshare", "--mount", "--propagation", "private"}
	h.Start()
	if r := h.Try("volume", "create", "other", "--plugin", "rec"); r.Code != 4 || !strings.Contains(r.Err, "namespace") {
		t.Errorf("a create: exit %d, %s", r.Code, r.Err)
	}
	h.ExpectCalls(mark)
	if out := h.Volctl("node", "status"); !strings.Contains(out, "another mount namespace") {
		t.Errorf("node status says\n%s", out)
	}
	if r := h.Try("volume", "claim", "data", "--alloc", "b"); r.Code != 4 || !strings.Contains(r.Err, "namespace") {
		t.Errorf("a claim: exit %d, %s", r.Code, r.Err)
	}
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Kill()
	h.Wrapper = nil
	h.Start("rec")
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	h.ExpectNoMounts()
}

// TestBothKilled kills the agent and the plugin at the same time. The next agent restarts the
// plugin and leaves the plugin's mounts untouched.
func TestBothKilled(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	file := h.StartWriter(h.Volctl("volume", "claim", "data", "--alloc", "a"))
	mounts, pid, mark := h.Mounts(), h.PluginPID("rec"), h.Mark()
	h.Kill()
	h.Must(syscall.Kill(pid, syscall.SIGKILL))
	h.Start("rec")
	if h.PluginPID("rec") == pid {
		t.Error("the plugin is still the old one")
	}
	h.Await("the volume to be looked at", func() bool { return strings.Contains(h.Volctl("volume", "list"), " mounted ") })
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.ExpectCalls(mark)
	was := harness.FileSize(file)
	h.Await("the writer to go on", func() bool { return harness.FileSize(file) > was })
}

// TestReboot checks that the agent mounts every claim again after a reboot without any command.
// Each claim keeps its path, and the agent does not repeat ControllerPublishVolume.
func TestReboot(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-multi-writer")
	for _, alloc := range []string{"a", "b"} {
		h.Volctl("volume", "claim", "data", "--alloc", alloc)
	}
	claims := h.Volctl("claim", "list", "-o", "json")
	h.Kill()
	h.StopPlugins()
	lines := strings.Split(strings.TrimSpace(h.Mounts()), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		h.Must(syscall.Unmount(strings.Fields(line)[4], 0))
	}
	h.Must(os.RemoveAll(filepath.Join(h.Dir, "run")))
	const bootID = "/proc/sys/kernel/random/boot_id"
	next := filepath.Join(h.Dir, "boot_id")
	h.Must(os.WriteFile(next, []byte("00000000-0000-4000-8000-000000000001\n"), 0o444))
	h.Must(syscall.Mount(next, bootID, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { h.Must(syscall.Unmount(bootID, 0)) })
	mark := h.Mark()

	h.Start("rec")
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "30s")
	h.ExpectCalls(mark, csitest.NodeStage, csitest.NodePublish, csitest.NodePublish)
	if got := h.Volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
}

// TestStopWithHungPlugin checks that the agent exits in time while a plugin hangs. The claim
// remains in the database, and the next agent mounts its volume.
func TestStopWithHungPlugin(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.Await("the call", func() bool { return h.Calls(0).Count(csitest.NodeStage) == 1 })
	ended := make(chan error, 1)
	h.Must(h.Cmd.Process.Signal(syscall.SIGTERM))
	go func() { ended <- h.Cmd.Wait() }()
	select {
	case err := <-ended:
		h.Must(err)
	case <-time.After(40 * time.Second): // the agent promises 10 s, but this host may be busy
		t.Fatal("the agent did not end within 40 s")
	}
	h.Must(h.Config.Faults().Clear())
	h.Start("rec")
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
}

// TestReaders checks the rights of a user other than root if the socket's mode admits this user.
// The user can read the state but not change it. The user can also read the files of a volume.
func TestReaders(t *testing.T) {
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "data", "--plugin", "local")
	path := h.Volctl("volume", "claim", "data")
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o644))
	h.Must(os.Chmod(harness.BinDir, 0o755))
	h.Must(os.Chmod(h.Socket(), 0o666))
	nobody := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = h.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput() // the caller checks the exit code instead of the error
		return string(out), cmd.ProcessState.ExitCode()
	}
	volctl := filepath.Join(harness.BinDir, "volctl")
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
		if out := h.Volctl(args...); !strings.Contains(out, `"last_log"`) {
			t.Errorf("%v: the log is not shown to root:\n%s", args, out)
		}
		if out, code := nobody(append([]string{volctl}, args...)...); code != 0 || strings.Contains(out, `"last_log"`) {
			t.Errorf("%v: exit %d, and another user sees a plugin's log:\n%s", args, code, out)
		}
	}
	if out, code := nobody("cat", filepath.Join(path, "file")); code != 0 || out != "kept" {
		t.Errorf("another user reads: exit %d\n%s", code, out)
	}
	if out, code := nobody("cat", filepath.Join(h.Dir, "d/state.db")); code == 0 {
		t.Errorf("another user reads the state database: %d bytes", len(out))
	}
	var claims []map[string]any
	h.Must(json.Unmarshal([]byte(h.Volctl("claim", "list", "-o", "json")), &claims))
	if len(claims) != 1 {
		t.Errorf("claims: %v", claims)
	}
}
