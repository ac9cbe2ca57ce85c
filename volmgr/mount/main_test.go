package mount

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
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stage is the name of the environment variable that tells this process of the test binary its
// role.
const stage = "MOUNT_TEST_STAGE"

// TestMain runs the tests in a new mount namespace. It fails if a mount, a loop device or a file
// remains after the tests.
func TestMain(m *testing.M) {
	switch s := os.Getenv(stage); s {
	case "":
		os.Exit(inNamespace())
	case "tests":
		os.Exit(checked(m))
	default:
		os.Exit(child(s))
	}
}

func inNamespace() int {
	dir, err := os.MkdirTemp("/tmp", "vm-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stage+"=tests", "TMPDIR="+dir, "GORACE=atexit_sleep_ms=0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err = cmd.Run()
	// The kernel removed the mounts together with their namespace. Loop devices and files may
	// remain after an interrupted run.
	for dev := range loopsIn(dir) {
		_ = exec.Command("losetup", "-d", dev).Run()
	}
	_ = os.RemoveAll(dir)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func checked(m *testing.M) int {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "cannot make / private:", err)
		return 1
	}
	before := leftovers()
	code := m.Run()
	after := leftovers()
	for end := time.Now().Add(20 * time.Second); after != before && time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		after = leftovers() // a loop device stays attached while any process uses its node
	}
	if after != before {
		fmt.Fprintf(os.Stderr, "tests left something behind:\nbefore:\n%s\nafter:\n%s\n", before, after)
		return 1
	}
	return code
}

// leftovers describes the mounts, loop devices and files of the tests. The result must be the same
// before and after the tests.
func leftovers() string {
	dir := os.Getenv("TMPDIR")
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err.Error()
	}
	files, _ := filepath.Glob(dir + "/*")
	return fmt.Sprintf("%s%v %v", table, loopsIn(dir), files)
}

// loopsIn returns the backing files of the loop devices whose backing file is in dir. The keys are
// the paths of the devices.
func loopsIn(dir string) map[string]string {
	loops := map[string]string{}
	found, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range found {
		data, err := os.ReadFile(f)
		if file := strings.TrimSpace(string(data)); err == nil && within(file, dir) {
			loops["/dev/"+strings.Split(f, "/")[3]] = file
		}
	}
	return loops
}

// child is the main function of a process that a test starts. It performs one action, prints
// "ready", and returns when its standard input is closed.
func child(what string) int {
	verb, arg, _ := strings.Cut(what, " ")
	var err error
	switch verb {
	case "stay": // do nothing: only the working directory and the namespace matter
	case "chroot":
		err = unix.Chroot(arg)
	case "open":
		_, err = unix.Open(arg, unix.O_RDONLY, 0)
	case "enter": // enter and open a directory
		if err = os.Chdir(arg); err == nil {
			_, err = unix.Open(".", unix.O_RDONLY, 0)
		}
	case "exclusive":
		_, err = unix.Open(arg, unix.O_RDONLY|unix.O_EXCL, 0)
	case "map":
		var fd int
		if fd, err = unix.Open(arg, unix.O_RDONLY, 0); err == nil {
			_, err = unix.Mmap(fd, 0, 1, unix.PROT_READ, unix.MAP_PRIVATE)
			err = errors.Join(err, unix.Close(fd))
		}
	case "thread": // move one thread into a namespace of its own
		done := make(chan error)
		var thread func()
		thread = func() {
			runtime.LockOSThread()
			if unix.Gettid() == os.Getpid() { // the first thread of a process cannot do this
				go thread()
			} else {
				done <- unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
			}
			select {}
		}
		go thread()
		err = <-done
	case "bind": // bind-mount FROM at TO, in a namespace of its own
		from, to, _ := strings.Cut(arg, " ")
		err = unix.Mount(from, to, "", unix.MS_BIND, "")
	case "contain": // bind-mount FROM at TO below a root directory of its own, as in a container
		from, to, _ := strings.Cut(arg, " ")
		err = contain(from, to)
	case "zombie": // start a process and never read its exit status
		c := exec.Command("/bin/true")
		err = c.Start()
	default:
		err = errors.New("unknown")
	}
	if err != nil {
		fmt.Println(what, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// start starts a child process, which runs until the test ends or calls stop.
func start(t *testing.T, what string, change func(*exec.Cmd)) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stage+"="+what)
	if change != nil {
		change(cmd)
	}
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			check(t, in.Close())
			check(t, cmd.Wait())
		}
	}
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("child %q: %q, %v", what, line, err)
	}
	return cmd.Process.Pid, stop
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir returns a temporary directory. When the test ends, the directory is removed with all
// mounts in it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { detachUnder(t, dir) })
	return dir
}

// detachUnder lazily unmounts every mount below dir.
func detachUnder(t testing.TB, dir string) {
	t.Helper()
	for {
		entries, err := newHost(t).Under(dir)
		check(t, err)
		if len(entries) == 0 {
			return
		}
		check(t, unix.Unmount(entries[len(entries)-1].Path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
}

func mkdir(t testing.TB, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	check(t, os.MkdirAll(dir, 0o755))
	return dir
}

func write(t testing.TB, path, content string) string {
	t.Helper()
	check(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func mountFS(t testing.TB, fstype, source, at string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, at, fstype, flags, data); err != nil {
		t.Fatalf("mount %s on %q: %v", fstype, at, err)
	}
}

func bindAt(t testing.TB, src, at string) {
	t.Helper()
	mountFS(t, "", src, at, unix.MS_BIND, "")
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(bytes.TrimSpace(out))
}

// loop makes a loop device on a new file. If mkfs is given, loop runs this command to make a file
// system on the device.
func loop(t testing.TB, dir string, size int64, mkfs ...string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "image")
	check(t, err)
	check(t, f.Truncate(size))
	check(t, f.Close())
	if len(mkfs) > 0 {
		if _, err := exec.LookPath(mkfs[0]); err != nil {
			t.Skip(err)
		}
		run(t, mkfs[0], append(mkfs[1:], f.Name())...)
	}
	dev := run(t, "losetup", "-f", "--show", f.Name())
	t.Cleanup(func() {
		detachUnder(t, dir)
		_ = exec.Command("losetup", "-d", dev).Run() // the command fails if the test has already detached the device
		await(t, "loop device to go", func() bool {
			return loopsIn(dir)[dev] == ""
		})
	})
	return dev
}

// number returns the device number ("major:minor") of a device node.
func number(t testing.TB, node string) string {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Stat(node, &st))
	return device(unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

// await waits until the condition is true.
func await(t testing.TB, what string, yes func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

func newHost(t testing.TB) *Host {
	t.Helper()
	h, err := New()
	check(t, err)
	return h
}

// boundedHost returns a Host with the given time limit.
func boundedHost(t testing.TB, bound time.Duration) *Host {
	t.Helper()
	h := newHost(t)
	h.gate.bound = bound
	return h
}
