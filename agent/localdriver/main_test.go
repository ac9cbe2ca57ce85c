package localdriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// The test binary starts itself again: first in a separate mount namespace for all tests. From
// there it starts again as a driver that a test kills, as the sanity suite, and in a user
// namespace.
const (
	envMode = "LOCALDRIVER_TEST_MODE"
	envBase = "LOCALDRIVER_TEST_BASE" // a directory with a short path, which holds the files of every test

	// envDie makes a driver process kill itself at a point of store.tap: "placed", or "frozen 2"
	// for the second time at that point.
	envDie = "LOCALDRIVER_TEST_DIE"

	modeTests  = "tests"
	modeSanity = "sanity"
	modeDriver = "driver"
)

func TestMain(m *testing.M) {
	switch os.Getenv(envMode) {
	case modeTests:
		os.Exit(m.Run())
	case modeSanity:
		os.Exit(runSanitySuite())
	case modeDriver:
		os.Exit(runDriverProcess())
	default:
		os.Exit(runIsolated())
	}
}

// runIsolated runs all tests in a new mount namespace and checks that they leave no mount or
// device.
func runIsolated() int {
	runtime.LockOSThread() // Pdeathsig refers to the parent's thread
	base, err := os.MkdirTemp("/tmp", "vld")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), envMode+"="+modeTests, envBase+"="+base)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = namespaces(os.Getuid(), os.Getgid())
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	code := exitCode(cmd.Run())
	if left := loopsLeft(base); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: loop devices are left behind:", left)
		code = 1
	}
	if left, err := readMounts(proc.OwnMounts, base); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: mounts are left behind:", left, err)
		code = 1
	}
	if err := os.RemoveAll(base); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: cannot clean up:", err)
		code = 1
	}
	return code
}

// namespaces gives root a mount namespace, and any other user a user namespace as well.
func namespaces(uid, gid int) *syscall.SysProcAttr {
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

// loopsUnder lists the loop devices of the whole machine whose backing file is under dir.
func loopsUnder(dir string) []string {
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

// loopsLeft is loopsUnder after a wait for the last users. A detached device remains as long as any
// process on this host keeps it open.
func loopsLeft(dir string) []string {
	left := loopsUnder(dir)
	for end := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left = loopsUnder(dir)
	}
	return left
}

// runDriverProcess runs a driver in a separate process, which a test kills.
func runDriverProcess() int {
	ctx, stop := signal.NotifyContext(background(), unix.SIGTERM)
	defer stop()
	err := Run(ctx, Options{
		Endpoint: "unix://" + os.Getenv("CSI_ENDPOINT"),
		NodeID:   "node-1",
		StateDir: os.Getenv("STATE_DIR"),
		Version:  "test",
		Log:      hclog.New(&hclog.LoggerOptions{Output: os.Stderr}),
		tap:      dieAt(os.Getenv(envDie)),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func dieAt(where string) func(point string) {
	if where == "" {
		return nil
	}
	var left atomic.Int64
	left.Store(1)
	point, times, _ := strings.Cut(where, " ")
	if n, err := strconv.ParseInt(times, 10, 64); err == nil {
		left.Store(n)
	}
	return func(at string) {
		if at == point && left.Add(-1) == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // until the signal arrives
		}
	}
}
