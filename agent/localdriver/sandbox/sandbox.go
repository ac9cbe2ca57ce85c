// Package sandbox helps the tests of the driver, which mount filesystems and attach loop devices.
// Only tests import it.
package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Mkdir makes a directory and its parents.
func Mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	p := filepath.Join(elem...)
	Must(t, os.MkdirAll(p, 0o755))
	return p
}

// ShortDir makes a directory whose path is short enough for a socket.
func ShortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(EnvBase), "t") //nolint:usetesting // t.TempDir is too long for a socket
	Must(t, err)
	return dir
}

// NeedLoops skips the test in a user namespace, where loop devices are not available. If root runs
// the test without loop devices, NeedLoops fails the test, because the image tests must run as
// root.
func NeedLoops(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	if err != nil && InUserNamespace(t) {
		t.Skipf("in a user namespace: %v", err)
	}
	Must(t, err)
}

// InUserNamespace reports whether this process runs in a user namespace.
func InUserNamespace(t *testing.T) bool {
	t.Helper()
	m, err := os.ReadFile("/proc/self/uid_map")
	Must(t, err)
	return !slices.Equal(strings.Fields(string(m)), []string{"0", "0", "4294967295"})
}

// Must ends the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantCode ends the test unless err has the given gRPC code. It also checks that the text of err
// contains the given words.
func WantCode(t *testing.T, err error, want codes.Code, words ...string) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Fatalf("got %v (%v), want %v", got, err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error %q does not say %q", err, w)
		}
	}
}

// WantGone ends the test if a file exists.
func WantGone(t *testing.T, p string) {
	t.Helper()
	if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%q still exists (%v)", p, err)
	}
}

// Write writes a file.
func Write(t *testing.T, p, text string) {
	t.Helper()
	Must(t, os.WriteFile(p, []byte(text), 0o644))
}

// WantContent ends the test if the content of a file differs from want.
func WantContent(t *testing.T, p, want string) {
	t.Helper()
	got, err := os.ReadFile(p)
	Must(t, err)
	if string(got) != want {
		t.Fatalf("%q holds %q, want %q", p, got, want)
	}
}

// Tmpfs mounts a tmpfs at a path, and unmounts it when the test ends.
func Tmpfs(t *testing.T, p, opts string) {
	t.Helper()
	Must(t, unix.Mount("tmpfs", p, "tmpfs", 0, opts))
	t.Cleanup(func() {
		if err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("cannot unmount %q: %v", p, err)
		}
	})
}

// Await polls done until it returns true. Another goroutine or process must cause the change.
func Await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 2 minutes", what)
		}
	}
}

// The test binary starts itself again in these modes. First it starts again in a separate mount
// namespace, in which all tests run. The tests start it again as a driver process, as the sanity
// suite, and in a user namespace.
const (
	EnvMode = "LOCALDRIVER_TEST_MODE"
	// a directory with a short path, which contains the files of all tests
	EnvBase = "LOCALDRIVER_TEST_BASE"

	ModeTests = "tests"
)

// runIsolated runs all tests in a new mount namespace and checks that the tests leave no mount or
// device.
func runIsolated() int {
	runtime.LockOSThread() // Pdeathsig sends its signal when the thread that started the child ends
	base, err := os.MkdirTemp("/tmp", "vld")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), EnvMode+"="+ModeTests, EnvBase+"="+base)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = Namespaces(os.Getuid(), os.Getgid())
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	code := exitCode(cmd.Run())
	if left := LoopsLeft(base); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: loop devices are left behind:", left)
		code = 1
	}
	if table, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(table), base) {
		fmt.Fprintln(os.Stderr, "FAIL: mounts are left behind:", base, err)
		code = 1
	}
	if err := os.RemoveAll(base); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: cannot clean up:", err)
		code = 1
	}
	return code
}

// Namespaces returns the attributes with which a process starts in a new mount namespace. For any
// user except root, the process also gets a new user namespace.
func Namespaces(uid, gid int) *syscall.SysProcAttr {
	if uid == 0 {
		return &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "FAIL:", err)
	return 1
}

// LoopsUnder lists the loop devices of the whole machine whose backing file is under the given
// directory.
func LoopsUnder(dir string) []string {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for _, f := range files {
		if backing, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(backing), dir+"/") {
			left = append(left, strings.Split(f, "/")[3])
		}
	}
	return left
}

// LoopsLeft waits until the loop devices with backing files under a directory are gone, and returns
// those that remain. A detached device remains as long as any process on this host keeps it open.
func LoopsLeft(dir string) []string {
	left := LoopsUnder(dir)
	for end := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left = LoopsUnder(dir)
	}
	return left
}

// SparseFile makes a file of the given size that consists of a hole.
func SparseFile(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	Must(t, err)
	Must(t, f.Truncate(size))
	Must(t, f.Close())
	return path
}

// Command runs a command that must succeed.
func Command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// Sorted returns the ids in alphabetical order.
func Sorted(ids ...string) []string { return slices.Sorted(slices.Values(ids)) }

// RunTests implements TestMain for a package. It runs all tests in a new mount namespace. The map
// modes contains other functions that the test binary can run instead, by the value of EnvMode.
func RunTests(m *testing.M, modes map[string]func() int) {
	mode := os.Getenv(EnvMode)
	switch run := modes[mode]; {
	case run != nil:
		os.Exit(run())
	case mode == ModeTests:
		os.Exit(m.Run())
	default:
		os.Exit(runIsolated())
	}
}
