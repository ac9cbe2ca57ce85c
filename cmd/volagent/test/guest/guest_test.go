package guest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

func TestMain(m *testing.M) { harness.MainBeside(m) }

// guest is a small Debian system with its own systemd. It runs in a container. Changes to its disk
// are kept only in memory, so no leftover remains when the test ends or is killed.
type guest struct {
	t      testing.TB
	tree   string // root of the guest's disk, also while the guest is not running
	leader string // pid of the guest's systemd on the host
	root   string // root of the running guest, with its mounts
	halt   func() // ends the running guest and frees its resources on the host
}

// noTree is the exit code of scripts/systemd-root if the script cannot build the guest's disk
// without a network.
const noTree = 75

// newGuest boots a guest with the agent's unit. Before the boot, the function install adds files to
// the guest's disk.
func newGuest(t testing.TB, install func(tree string)) *guest {
	t.Helper()
	g := newTree(t)
	install(g.tree)
	if state := g.boot(); state != "running" {
		t.Fatalf("the guest is %s: %s", state, g.failed())
	}
	return g
}

// newTree returns a guest that is not booted yet.
func newTree(t testing.TB) *guest {
	t.Helper()
	g := &guest{t: t, halt: func() {}}
	for _, tool := range []string{"debootstrap", "systemd-nspawn", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v; scripts/setup test installs it", err)
		}
	}
	out, err := exec.Command("../../../../scripts/systemd-root").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == noTree {
		t.Skipf("there is no tree to boot, and none can be made: %s", bytes.TrimSpace(exit.Stderr))
	}
	if errors.As(err, &exit) {
		t.Fatalf("cannot make the tree to boot: %v: %s", err, exit.Stderr)
	}
	g.must(err)
	g.tree = g.overlay(strings.TrimSpace(string(out)))
	t.Cleanup(func() { g.halt() })
	return g
}

// boot boots the guest and returns the state that systemd reports. The state is "running", or
// "degraded" if a unit failed.
func (g *guest) boot() (state string) {
	g.t.Helper()
	dir := filepath.Dir(g.tree)
	console, err := os.OpenFile(filepath.Join(dir, "console"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	g.must(err)
	keeper := exec.Command("../../../../scripts/systemd-guest", g.tree, filepath.Base(harness.BinDir)+"-"+filepath.Base(dir))
	keeper.Stderr = console
	stdin, err := keeper.StdinPipe()
	g.must(err)
	stdout, err := keeper.StdoutPipe()
	g.must(err)
	g.must(keeper.Start())
	g.halt = sync.OnceFunc(func() {
		g.must(stdin.Close())
		_ = keeper.Wait() // the exit status does not matter
		if g.t.Failed() {
			text, err := os.ReadFile(console.Name())
			g.t.Logf("the console: %v\n%s", err, text)
		}
		g.must(console.Close())
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if g.leader = strings.TrimSpace(line); err != nil || g.leader == "" {
		g.t.Fatalf("the guest does not boot: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }() // ends when the guest ends
	g.root = "/proc/" + g.leader + "/root"
	g.await("systemd", func() bool {
		state = strings.TrimSpace(g.try("systemctl", "is-system-running", "--wait").Out)
		return state == "running" || state == "degraded"
	})
	return state
}

// failed returns the guest's failed units and the warnings in its journal.
func (g *guest) failed() string {
	g.t.Helper()
	return g.try("systemctl", "list-units", "--failed", "--no-pager", "--plain").Out + g.try("journalctl", "--boot", "--no-pager", "-q", "-p", "warning").Out
}

// down makes the guest power off and waits until the guest has ended.
func (g *guest) down() {
	g.t.Helper()
	g.run("systemctl", "--no-block", "poweroff")
	for end := time.Now().Add(200 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat("/proc/" + g.leader); err != nil {
			break
		}
		if time.Now().After(end) {
			g.t.Fatalf("the guest does not go down\n%s", g.journal())
		}
	}
	g.halt()
}

// journal returns the journal messages of all boots of the guest. The guest must keep its journal
// on disk (see keepJournal).
func (g *guest) journal(args ...string) string {
	g.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(g.tree, "var/log/journal/*"))
	g.must(err)
	var all []byte
	for _, dir := range dirs {
		out, err := exec.Command("journalctl", append([]string{"--directory=" + dir, "--no-pager", "-q"}, args...)...).CombinedOutput()
		if err != nil && len(out) > 0 { // journalctl also fails if no message matches
			g.t.Fatalf("journalctl: %v: %s", err, out)
		}
		all = append(all, out...)
	}
	return string(all)
}

// keepJournal makes a guest write its journal to disk.
func keepJournal(t testing.TB, tree string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(tree, "var/log/journal"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (g *guest) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// overlay mounts a copy of a directory tree and returns the path of the copy. All changes to the
// copy are kept in memory.
func (g *guest) overlay(lower string) string {
	g.t.Helper()
	dir, err := os.MkdirTemp(harness.BinDir, "guest")
	g.must(err)
	g.t.Cleanup(func() { g.must(os.Remove(dir)) })
	g.must(unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	g.t.Cleanup(func() { g.must(unix.Unmount(dir, unix.MNT_DETACH)) })
	for _, d := range []string{"upper", "work", "tree"} {
		g.must(os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	tree := filepath.Join(dir, "tree")
	g.must(unix.Mount("overlay", tree, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/upper,workdir=%[2]s/work", lower, dir)))
	g.t.Cleanup(func() { g.must(unix.Unmount(tree, unix.MNT_DETACH)) })
	return tree
}

// try runs a command in the guest and returns its result.
func (g *guest) try(args ...string) harness.Result {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", g.leader, "-m", "-u", "-i", "-n", "-p", "-C", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.t.Fatalf("%v: %v", args, err)
	}
	return harness.Result{Out: out.String(), Err: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

// run runs a command in the guest and returns its output. The command must succeed.
func (g *guest) run(args ...string) string {
	g.t.Helper()
	r := g.try(args...)
	if r.Code != 0 {
		g.t.Fatalf("%s: exit %d\n%s%s", strings.Join(args, " "), r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

func (g *guest) await(what string, cond func() bool) {
	g.t.Helper()
	for end := time.Now().Add(100 * time.Second); !cond(); {
		if time.Now().After(end) {
			g.t.Fatalf("did not come true in time: %s\n%s", what, g.try("journalctl", "--no-pager", "-n", "100", "-o", "short-precise").Out)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// write writes a file in the running guest.
func (g *guest) write(path, text string) {
	g.t.Helper()
	g.must(os.WriteFile(filepath.Join(g.root, path), []byte(text), 0o644))
}

// plugin returns one field of a plugin's status.
func (g *guest) plugin(id, field string) string {
	g.t.Helper()
	return g.run("volctl", "plugin", "status", id, "-o", "go-template={{with ."+field+"}}{{.}}{{end}}")
}

// ready waits until a plugin is ready. It returns the plugin's pid in the guest's pid namespace.
func (g *guest) ready(id string) string {
	g.t.Helper()
	g.run("volctl", "wait", "--plugin", id, "--timeout", "30s")
	return g.plugin(id, "pid")
}

// cgroup returns the control group of a process in the guest.
func (g *guest) cgroup(pid string) string {
	g.t.Helper()
	for line := range strings.Lines(g.run("cat", "/proc/"+pid+"/cgroup")) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(rest)
		}
	}
	g.t.Fatalf("process %s has no cgroup", pid)
	return ""
}

// claim registers and claims a volume. It then starts a service that writes to the volume, and
// returns this service.
func (g *guest) claim(plugin, volume string) *scribe {
	g.t.Helper()
	file := "/root/" + volume + ".yaml"
	g.write(file, fmt.Sprintf("id: %s\nplugin_id: %s\nexternal_id: ext-%[1]s\ncapabilities:\n- {access_mode: single-node-writer, attachment_mode: file-system}\n", volume, plugin))
	g.run("volctl", "volume", "register", file)
	path := g.run("volctl", "volume", "claim", volume, "--alloc", "a", "--owner", "none")
	return g.writes(volume, path)
}

// writes starts a service that writes to a volume, and returns this service.
func (g *guest) writes(volume, path string) *scribe {
	g.t.Helper()
	l := &scribe{g: g, unit: "writer-" + volume + ".service", file: path + "/log"}
	g.run("systemd-run", "--quiet", "--unit="+l.unit, "--property=DefaultDependencies=no", "sh", "-c",
		`exec >>"$0"; i=0; while echo $i; do i=$((i+1)); sleep 0.01; done`, l.file)
	l.goesOn()
	return l
}

// scribe is a service that writes increasing numbers to a volume. It ends when a write fails.
type scribe struct {
	g          *guest
	unit, file string
}

func (l *scribe) lines() []string {
	l.g.t.Helper()
	return strings.Fields(l.g.run("cat", l.file))
}

// goesOn waits until the service has written another number. It asserts that no number is missing
// and that the service still runs.
func (l *scribe) goesOn() {
	l.g.t.Helper()
	before := -1
	l.g.await("the writer of "+l.file+" goes on", func() bool {
		r := l.g.try("cat", l.file)
		n := len(strings.Fields(r.Out))
		if before < 0 {
			before = n
		}
		return n > before
	})
	for i, line := range l.lines() {
		if line != strconv.Itoa(i) {
			l.g.t.Fatalf("line %d of %s is %q", i, l.file, line)
		}
	}
	if r := l.g.try("systemctl", "is-active", l.unit); r.Code != 0 {
		l.g.t.Fatalf("the writer of %s is %s", l.file, r.Out)
	}
}

// built builds a program of this project without cgo, so that the program needs no C library.
func built(t testing.TB, to string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", append(args, "-o", to)...)
	if i := len(args) - 1; i > 0 { // put -o before the package, which is the last argument
		cmd = exec.Command("go", append(append(append([]string{}, args[:i]...), "-o", to), args[i])...)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build: %v\n%s", err, out)
	}
}
