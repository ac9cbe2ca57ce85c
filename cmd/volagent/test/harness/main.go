// Package harness contains the shared code for tests of the built programs. It provides simulated
// hosts, container runtimes, and the main function of each test folder. Only tests import this
// package.
package harness

import (
	"errors"
	"flag"
	"fmt"
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

// inside is an environment variable that marks the child process in which the tests run. This
// process has its own mount namespace, so mounts of a test never remain on the host.
const inside = "VOLAGENT_TEST_NAMESPACE"

// Child is a second program inside a test binary. The binary runs this program instead of the tests
// if the environment variable named by Env is set.
type Child struct {
	Env string
	Run func(value string) (exitCode int)
}

// Main is the main function of a test folder. It waits until no other folder that uses Main runs
// its tests.
func Main(m *testing.M, children ...Child) { runFolder(m, true, children) }

// MainBeside is the main function of a test folder whose tests may run at the same time as those of
// another folder.
func MainBeside(m *testing.M) { runFolder(m, false, nil) }

// runFolder runs the tests of a folder in their own mount namespace. If alone is true, no other
// folder with alone set runs its tests at the same time. In a child process, runFolder runs the
// child's program instead of the tests.
func runFolder(m *testing.M, alone bool, children []Child) {
	if csitest.IsChild() {
		os.Exit(csitest.Main())
	}
	for _, c := range children {
		if value := os.Getenv(c.Env); value != "" {
			os.Exit(c.Run(value))
		}
	}
	// Run six tests in parallel, because they spend most of their time waiting. A flag on the
	// command line overrides this number.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // listing the tests needs neither root nor the programs
	}
	if os.Getenv(inside) == "" {
		os.Exit(reexec())
	}
	os.Exit(run(m, alone))
}

// reexec runs this binary again in its own mount namespace.
func reexec() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "cannot run the tests in a mount namespace of their own (root is needed):", err)
		return 1
	}
	return 0
}

// run builds the programs, runs the tests, and checks that the tests leave no mounts, loop devices,
// namespaces or processes on the host. If alone is true, it first waits for the lock of all folders.
func run(m *testing.M, alone bool) (code int) {
	syscall.Umask(0o022) // some tests read files as an unprivileged user
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fail(err)
	}
	if alone {
		// The time limit of go test does not include this wait, because the limit starts only with
		// m.Run.
		unlock, err := lockFolders()
		if err != nil {
			return fail(err)
		}
		defer func() { _ = unlock() }() // the kernel unlocks at exit anyway
	}
	var err error
	if BinDir, err = os.MkdirTemp("", "volagent-bin"); err != nil {
		return fail(err)
	}
	defer func() {
		if err := os.RemoveAll(BinDir); err != nil {
			code = fail(err)
		}
	}()
	if err := build(BinDir); err != nil {
		return fail(err)
	}
	before := leftovers()
	code = m.Run()
	if err := stopBoxes(); err != nil {
		return fail(fmt.Errorf("the container runtimes of the tests cannot be ended: %w", err))
	}
	after := leftovers()
	for end := time.Now().Add(20 * time.Second); after != before && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		after = leftovers() // some processes end shortly after their parent
	}
	if after != before {
		return fail(fmt.Errorf("the tests left something behind.\nbefore:\n%s\nafter:\n%s", before, after))
	}
	return code
}

// leftovers describes the mounts, loop devices, namespaces and processes that exist now. run compares the
// results from before and after the tests.
func leftovers() string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err.Error()
	}
	loops, err := exec.Command("losetup", "-l", "-n", "-O", "BACK-FILE").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	left := string(mounts) + strings.Join(slices.Concat(processes(BinDir), namespaces()), "\n")
	for line := range strings.Lines(string(loops)) {
		// Ignore the loop devices of tests in other packages, which may run at the same time.
		if slices.ContainsFunc(hostDirs, func(dir string) bool { return strings.HasPrefix(line, dir+"/") }) {
			left += line
		}
	}
	return left
}

// processes returns the running processes whose program is below the directory dir.
func processes(dir string) []string {
	var found []string
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return []string{err.Error()}
	}
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err == nil && strings.HasPrefix(to, dir+"/") {
			found = append(found, filepath.Dir(exe)+" "+to)
		}
	}
	return found
}
