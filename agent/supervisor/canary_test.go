package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/mount"
)

// envMounts tells the test binary that it already runs in its own mount namespace.
const envMounts = "SUPERVISOR_TEST_MOUNTS"

// inOwnMounts runs the calling test a second time, in a separate process with its own mount
// namespace. It returns true in the second run.
func inOwnMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envMounts) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), envMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("in a mount namespace of its own: %v\n%s", err, out)
	}
	return false
}

// sharedBench returns a bench whose mount roots are below a shared mount.
func sharedBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	top := b.dir + "/d/csi"
	host, err := mount.New()
	err = errors.Join(err, os.MkdirAll(top, 0o711), unix.Mount(top, top, "", unix.MS_BIND, ""), unix.Mount("", top, "", unix.MS_SHARED, ""))
	if err != nil {
		t.Fatal(err)
	}
	b.opts.Host = host
	before := shared.ReplaceAllString(mounts(t, "self"), "")
	t.Cleanup(func() { // this cleanup runs before the cleanup of the bench
		b.stop()
		if after := shared.ReplaceAllString(mounts(t, "self"), ""); after != before {
			t.Errorf("the mount table was\n%s\nand is\n%s", before, after)
		}
		if left, _ := filepath.Glob(top + "/*/staging/" + mount.CanaryName); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return b
}

// shared matches the peer group of a shared mount in a mount table.
var shared = regexp.MustCompile(` shared:[0-9]+`)

// mounts returns the mount table of a process.
func mounts(t *testing.T, pid string) string {
	t.Helper()
	table, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(table)
}

// wrapped returns a plugin file in which the given command starts the fake plugin.
func (b *bench) wrapped(command, more string) string {
	return strings.Replace(b.fakeFile("", more), "command: [", "command: ["+command+", ", 1)
}

// expectReason fails the test unless the plugin's reason contains all the given words.
func expectReason(t *testing.T, st supervisor.Status, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(st.Reason, w) {
			t.Errorf("reason %q does not say %q", st.Reason, w)
		}
	}
}

// TestCanary checks that a plugin becomes ready only if it and the host see each other's mounts.
func TestCanary(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	for name, tt := range map[string]struct {
		command string
		reason  []string // words of the expected reason; if empty, the plugin must become ready
	}{
		"in the host's namespace": {command: "env"},
		"shared":                  {command: "unshare, -m, --propagation, shared"},
		"shared, behind a shell":  {command: `sh, -c, 'unshare -m --propagation shared "$0" & trap "kill $!" TERM; wait'`},
		"slave": {
			command: "unshare, -m, --propagation, slave",
			reason:  []string{": services would write to the host's disk"},
		},
		"private": {
			command: "unshare, -m, --propagation, private",
			reason:  []string{"the plugin and this host do not see each other's mounts"},
		},
		"private, behind a shell": {
			command: `sh, -c, 'unshare -m --propagation private "$0" & trap "kill $!" TERM; wait'`,
			reason:  []string{"the plugin and this host do not see each other's mounts"},
		},
		"without the directory": {
			command: `unshare, -m, sh, -c, 'mount -t tmpfs none %s && exec "$0"'`,
			reason:  []string{"the plugin has no directory"},
		},
		"with another directory": {
			command: `unshare, -m, sh, -c, 'mkdir -p %s/fake/staging && mount -t tmpfs none %s/fake/staging && exec "$0"'`,
			reason:  []string{"the plugin has another directory than this host"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := sharedBench(t)
			top := b.dir + "/d/csi"
			b.file("fake.yaml", b.wrapped(strings.ReplaceAll(tt.command, "%s", top), "health: {interval: 1h}\n"))
			b.start()
			if tt.reason == nil {
				st := b.await("fake", supervisor.Ready)
				if len(st.Warnings) > 0 {
					t.Errorf("warnings %q", st.Warnings)
				}
				if strings.Contains(mounts(t, fmt.Sprint(b.starts()[0])), "canary") {
					t.Error("a canary is left in the plugin's namespace")
				}
				return
			}
			st := b.await("fake", supervisor.Failed)
			expectReason(t, st, append(tt.reason, top+"/fake", "start it in the host's mount namespace", "volctl plugin restart fake")...)
			b.awaitThat("fake", "stopped, since it holds no volume", func(st supervisor.Status) bool { return st.PID == 0 })

			// After the operator has fixed the file, the agent must use the plugin.
			b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
			b.await("fake", supervisor.Ready)
		})
	}
}

// TestCanaryWhereNothingIsShared checks a host that does not share its own mount. For a plugin in
// another mount namespace, the reason must tell the operator to share the host's mount first. A
// plugin in the host's namespace must become ready as usual.
func TestCanaryWhereNothingIsShared(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	b := sharedBench(t)
	top := b.dir + "/d/csi"
	if err := unix.Mount("", top, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	b.file("apart.yaml", strings.Replace(b.wrapped("unshare, -m, --propagation, unchanged", ""), "id: fake", "id: apart", 1))
	b.file("fake.yaml", b.fakeFile("", ""))
	b.start()
	b.await("fake", supervisor.Ready)
	expectReason(t, b.await("apart", supervisor.Failed), "do not see each other's mounts", "mount --bind "+top+" "+top+" && mount --make-rshared "+top)
}

// TestCanaryAfterARestartOfTheAgent checks that a new agent tests the plugin again, and keeps the
// mounts of volumes below the same directory. The new agent must also remove the test mount of an
// agent that was killed.
func TestCanaryAfterARestartOfTheAgent(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	b := sharedBench(t)
	root := b.dir + "/d/csi/fake"
	b.file("fake.yaml", b.wrapped("unshare, -m, --propagation, shared", "health: {interval: 1h}\n"))
	b.start()
	st := b.await("fake", supervisor.Ready)
	live := root + "/staging/data"
	if err := errors.Join(os.MkdirAll(live, 0o700), unix.Mount("live", live, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	b.inUse.Store(true)
	b.stop()

	at := root + "/staging/" + mount.CanaryName
	// a leftover of a plugin that is no longer configured
	gone := b.dir + "/d/csi/gone/staging/" + mount.CanaryName
	for _, dir := range []string{at, gone} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount("volagent-canary", dir, "tmpfs", unix.MS_RDONLY, "size=4k")); err != nil {
			t.Fatal(err)
		}
	}
	b.start()
	if now := b.await("fake", supervisor.Ready); now.PID != st.PID {
		t.Errorf("process %d, before %d", now.PID, st.PID)
	}
	await(t, "what was left to go", func() bool {
		_, err := os.Lstat(gone)
		return errors.Is(err, fs.ErrNotExist)
	})
	for _, pid := range []string{"self", fmt.Sprint(st.PID)} {
		if table := mounts(t, pid); !strings.Contains(table, live) || strings.Contains(table, mount.CanaryName) {
			t.Errorf("mounts of %s:\n%s", pid, table)
		}
	}
	b.stop()

	// If a plugin with volumes no longer shares mounts, the agent does not use it, but does not
	// stop it either.
	if err := unix.Mount("", b.dir+"/d/csi", "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	b.start()
	expectReason(t, b.await("fake", supervisor.Failed), "do not see each other's mounts", "--make-rshared")
	if !alive(st.PID) || !strings.Contains(mounts(t, fmt.Sprint(st.PID)), live) {
		t.Error("the plugin was stopped under its volumes, or lost a mount")
	}
	b.stop()
	b.inUse.Store(false)
	if err := errors.Join(unix.Unmount(live, 0), os.Remove(filepath.Dir(gone))); err != nil {
		t.Fatal(err)
	}
}

// TestCanaryOfASocket checks a plugin that the agent does not run. When another instance serves the
// plugin's socket, the agent must repeat the mount test.
func TestCanaryOfASocket(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	b := sharedBench(t)
	socket := b.dir + "/s.sock"
	var pids []int
	serve := func(propagation string) {
		t.Helper()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		cmd := exec.Command("unshare", "-m", "--propagation", propagation, exe)
		cmd.Env = append(os.Environ(), envFake+"="+string(b.fake), "CSI_ENDPOINT=unix://"+socket)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, cmd.Process.Pid)
		await(t, "the socket", func() bool {
			c, err := net.Dial("unix", socket)
			return err == nil && c.Close() == nil
		})
	}
	serve("slave")
	b.file("fake.yaml", "id: fake\nsocket: "+socket+"\nhealth: {interval: 1h}\n")
	b.start()
	st := b.awaitThat("fake", "unhealthy for its mounts", func(st supervisor.Status) bool {
		return st.State == supervisor.Unhealthy && strings.Contains(st.Reason, "shared")
	})
	root := b.dir + "/d/csi/fake"
	expectReason(t, st, "this host does not see the mounts that the plugin makes below", "-v "+root+":"+root+":rshared", "start the plugin again")
	if _, err := b.sup.Client("fake"); err == nil {
		t.Error("it is used")
	}
	kill(t, pids[0])
	serve("shared")
	b.awaitThat("fake", "ready", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID == pids[1] })
}

// TestPluginOfAnotherUser checks a plugin whose user cannot enter the staging directory. The agent
// must refuse this plugin with a reason. It must use a plugin that runs as root, or that may enter
// all directories.
func TestPluginOfAnotherUser(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	b := sharedBench(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	public := b.dir + "/public"
	if out, err := exec.Command("sh", "-ec", `mkdir "$0"; chmod 755 "$0/.."; chmod 777 "$0"; cp "$1" "$0/fake"; chmod 755 "$0/fake"`, public, exe).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	socket := public + "/s.sock"
	serve := func(as ...string) int {
		t.Helper()
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		cmd := exec.Command("setpriv", append(as, public+"/fake")...)
		cmd.Env = append(os.Environ(), envFake+"="+public, "CSI_ENDPOINT=unix://"+socket)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, "the socket", func() bool {
			c, err := net.Dial("unix", socket)
			return err == nil && c.Close() == nil
		})
		return cmd.Process.Pid
	}
	other := []string{"--reuid=65534", "--regid=65534", "--clear-groups"}
	pid := serve(other...)
	b.file("fake.yaml", "id: fake\nsocket: "+socket+"\nhealth: {interval: 1h}\n")
	b.start()
	st := b.awaitThat("fake", "unhealthy for its user", func(st supervisor.Status) bool {
		return st.State == supervisor.Unhealthy && strings.Contains(st.Reason, "65534")
	})
	expectReason(t, st, "the plugin must run as root", b.dir+"/d/csi/fake/staging", "run the process that serves "+socket+" as root")
	if _, err := b.sup.Client("fake"); err == nil {
		t.Error("it is used")
	}
	kill(t, pid)
	pid = serve(append(slices.Clone(other), "--inh-caps=+dac_override", "--ambient-caps=+dac_override")...)
	b.awaitThat("fake", "ready with the capability", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID == pid })
	kill(t, pid)
	pid = serve("--reuid=0")
	b.awaitThat("fake", "ready as root", func(st supervisor.Status) bool { return st.State == supervisor.Ready && st.PID == pid })
}

// TestNetworkOfItsOwn checks that a plugin in its own network namespace causes one warning and has
// no other effect.
func TestNetworkOfItsOwn(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	b := sharedBench(t)
	var mu sync.Mutex
	var told []string
	b.opts.OnWarning = func(id, _, warning string) { mu.Lock(); defer mu.Unlock(); told = append(told, id+": "+warning) }
	b.file("fake.yaml", b.wrapped("unshare, -n", "health: {interval: 1h}\n"))
	b.start()
	st := b.await("fake", supervisor.Ready)
	if len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "in a network namespace of its own") || !strings.Contains(st.Warnings[0], "start it in the host's network namespace") {
		t.Errorf("warnings %q", st.Warnings)
	}
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.awaitThat("fake", "ready again, and warned of", func(now supervisor.Status) bool {
		return now.State == supervisor.Ready && now.PID != st.PID && slices.Equal(now.Warnings, st.Warnings)
	})
	mu.Lock()
	if want := "fake: " + st.Warnings[0]; !slices.Equal(told, []string{want}) {
		t.Errorf("told %q", told)
	}
	mu.Unlock()
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.awaitThat("fake", "ready, and not warned of", func(now supervisor.Status) bool { return now.State == supervisor.Ready && len(now.Warnings) == 0 })
}

// TestNoCanaryWithoutNeed checks that the agent makes no test mount for a plugin in the host's
// namespaces.
func TestNoCanaryWithoutNeed(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	b := sharedBench(t)
	root := b.dir + "/d/csi/fake"
	if err := os.MkdirAll(root, 0o711); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.InotifyAddWatch(fd, root, unix.IN_CREATE|unix.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	b.file("fake.yaml", b.fakeFile("", quick))
	b.start()
	st := b.await("fake", supervisor.Ready)
	c, err := b.sup.Client("fake")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if ready, err := c.Probe(ctx); !ready || err != nil {
		t.Errorf("probe of %d: %v, %v", st.PID, ready, err)
	}
	var room [512]byte
	if n, err := unix.Read(fd, room[:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("something was made or removed in the mount root: %d bytes of events, %v", n, err)
	}
}
