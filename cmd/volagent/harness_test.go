package main_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
)

// BinDir is the directory with volagent and volctl, both built from this tree.
var BinDir string

// inside is set in the environment of the child process that runs the tests in its own mount
// namespace. Mounts of a test therefore never remain on the host.
const inside = "VOLAGENT_TEST_NAMESPACE"

func TestMain(m *testing.M) {
	if csitest.IsChild() {
		os.Exit(csitest.Main())
	}
	if dir := os.Getenv(crashEnv); dir != "" {
		os.Exit(crashMain(dir))
	}
	if role := os.Getenv(loadRole); role != "" {
		os.Exit(loadChild(role))
	}
	if dir := os.Getenv(autofsDir); dir != "" {
		os.Exit(serveAutofs(dir))
	}
	if os.Getenv(inside) == "" {
		os.Exit(reexec())
	}
	os.Exit(run(m))
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

// run builds the programs, runs the tests, and checks that the tests leave no mounts, loop devices
// or processes on the host.
func run(m *testing.M) (code int) {
	syscall.Umask(0o022) // some tests read files as another user
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fail(err)
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
	for _, program := range []string{"volagent", "volctl"} {
		args := []string{"build", "-buildvcs=false", "-o", BinDir + "/"}
		if raceDetector && program == "volagent" {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, "../"+program)...).CombinedOutput(); err != nil {
			return fail(fmt.Errorf("cannot build: %w\n%s", err, out))
		}
	}
	// Run six tests in parallel, because they spend most of their time waiting. A flag on the
	// command line overrides this number.
	if err := flag.Set("test.parallel", "6"); err != nil {
		return fail(err)
	}
	before := leftovers()
	code = m.Run()
	if err := stopBoxes(); err != nil {
		return fail(fmt.Errorf("the container runtimes of the tests cannot be ended: %w", err))
	}
	// Remove the cgroups of plugins that ended while no agent was running. On a real host the next
	// agent removes them.
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/volagent-plugin-*")
	for _, dir := range groups {
		_ = os.Remove(dir) // the kernel keeps cgroups that are in use
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

// leftovers returns the mounts, loop devices and processes that exist now. run compares the values
// before and after the tests.
func leftovers() string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err.Error()
	}
	loops, err := exec.Command("losetup", "-l", "-n", "-O", "BACK-FILE").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	left := string(mounts) + strings.Join(processes(BinDir), "\n")
	for line := range strings.Lines(string(loops)) {
		// Tests of other packages run at the same time and have their own loop devices.
		if slices.ContainsFunc(hostDirs, func(dir string) bool { return strings.HasPrefix(line, dir+"/") }) {
			left += line
		}
	}
	return left
}

// processes returns the processes whose program is below dir.
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

// hostDirs contains the directories of all hosts that the tests have created.
var (
	hostDirs   []string
	hostDirsMu sync.Mutex
)

// Host is the simulated host of a test. It consists of directories, an agent, and the agent's
// processes.
type Host struct {
	T   testing.TB
	Dir string // short, because CSI paths below it must fit in 128 bytes
	Env []string
	Cmd *exec.Cmd
	Log *os.File

	OmitFlags []string // flags that Args omits, with their values
	MoreArgs  []string // additional arguments of the agent
	Wrapper   []string // a program with arguments that runs the agent

	Program string // path of the agent's binary, or "" for the one of this tree
}

// NewHost creates the directories of a host. At the end of the test it stops running plugins and
// unmounts all mounts.
func NewHost(t testing.TB) *Host {
	t.Helper()
	h := &Host{T: t}
	for h.Dir == "" {
		dir := "/tmp/" + randomWord()
		if os.Mkdir(dir, 0o755) == nil {
			h.Dir = dir
			hostDirsMu.Lock()
			hostDirs = append(hostDirs, dir)
			hostDirsMu.Unlock()
		}
	}
	h.Env = append(os.Environ(), "VOLCTL_SOCKET="+h.Socket(), "VOLAGENT_VOLUMES_DIR="+filepath.Join(h.Dir, "volumes.d"), "PATH="+BinDir+":"+os.Getenv("PATH"), "INVOCATION_ID=")
	for _, d := range []string{"plugins.d", "run"} {
		h.Must(os.Mkdir(filepath.Join(h.Dir, d), 0o755))
	}
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), nil, 0o644))
	log, err := os.Create(filepath.Join(h.Dir, "agent.log"))
	h.Must(err)
	h.Log = log
	t.Cleanup(h.close)
	return h
}

// randomWord returns a word for the host's directory. The word has no vowels and no digits.
// Therefore text that a test expects in output, such as an id, never appears in a path by accident.
func randomWord() string {
	const consonants = "bcdfghjklmnpqrstvwxz"
	word := make([]byte, 6)
	for i := range word {
		word[i] = consonants[rand.IntN(len(consonants))]
	}
	return string(word)
}

func (h *Host) Must(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

func (h *Host) Socket() string { return filepath.Join(h.Dir, "run", "volagent.sock") }

// Args returns the agent's flags. They keep all files and sockets of the agent in the host's
// directory.
func (h *Host) Args() []string {
	args := []string{
		"--config", filepath.Join(h.Dir, "volagent.yaml"), "--data-dir", filepath.Join(h.Dir, "d"),
		"--runtime-dir", filepath.Join(h.Dir, "run"), "--plugin-dir", filepath.Join(h.Dir, "plugins.d"),
		"--node-id", "test-host", "--log-level", "debug",
	}
	for _, f := range h.OmitFlags {
		if i := slices.Index(args, f); i >= 0 {
			args = slices.Delete(args, i, i+2)
		}
	}
	return append(args, h.MoreArgs...)
}

// Start starts the agent. It waits until the agent answers and the given plugins are ready.
func (h *Host) Start(plugins ...string) {
	h.T.Helper()
	argv := append(slices.Clone(h.Wrapper), cmp.Or(h.Program, filepath.Join(BinDir, "volagent")))
	argv = append(argv, h.Args()...)
	h.Cmd = exec.Command(argv[0], argv[1:]...)
	h.Cmd.Env, h.Cmd.Stderr = h.Env, h.Log
	h.Must(h.Cmd.Start())
	h.Volctl("wait", "--timeout", "60s")
	for _, p := range plugins {
		h.Volctl("wait", "--plugin", p, "--timeout", "60s")
	}
}

// Signal sends a signal to the agent and waits until the agent ends.
func (h *Host) Signal(sig syscall.Signal) error {
	h.T.Helper()
	h.Must(h.Cmd.Process.Signal(sig))
	err := h.Cmd.Wait()
	h.Cmd = nil
	return err
}

// Kill kills the agent with SIGKILL.
func (h *Host) Kill() {
	h.T.Helper()
	if err := h.Signal(syscall.SIGKILL); err == nil {
		h.T.Fatal("the agent outlived SIGKILL")
	}
}

// Result is the output and the exit code of a command.
type Result struct {
	Out, Err string
	Code     int
}

// Try runs volctl and returns its result.
func (h *Host) Try(args ...string) Result {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(BinDir, "volctl"), args...)
	cmd.Env = h.Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.T.Fatalf("volctl %v: %v", args, err)
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Volctl runs volctl and returns its output. The command must succeed.
func (h *Host) Volctl(args ...string) string {
	h.T.Helper()
	r := h.Try(args...)
	if r.Code != 0 {
		h.T.Fatalf("volctl %s: exit %d\n%s%s", strings.Join(args, " "), r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// Await waits until cond returns true, at most 100 seconds.
func (h *Host) Await(what string, cond func() bool) {
	h.T.Helper()
	for end := time.Now().Add(100 * time.Second); !cond(); {
		if time.Now().After(end) {
			h.T.Fatalf("did not come true in time: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Mounts returns the lines of the mount table for mounts below the host's directory.
func (h *Host) Mounts() string {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	h.Must(err)
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, " "+h.Dir+"/") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// PluginPID returns the process id of a plugin, or 0 if the plugin has no process.
func (h *Host) PluginPID(id string) int {
	h.T.Helper()
	pid, err := strconv.Atoi(h.Volctl("plugin", "status", id, "-o", "go-template={{.pid}}"))
	if err != nil {
		return 0
	}
	return pid
}

// close stops the agent and the plugins, and removes all mounts and directories of the host. A test
// must assert the state of its mounts itself, because close removes leftover mounts without failing
// the test.
func (h *Host) close() {
	raw, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if bytes.Contains(raw, []byte(bad)) {
			h.T.Errorf("the agent's log holds %q", bad)
		}
	}
	if h.T.Failed() {
		h.T.Logf("the agent's log:\n%s", raw)
	}
	if h.Cmd != nil {
		h.Must(h.Cmd.Process.Kill())
		_ = h.Cmd.Wait() // the agent was killed
	}
	h.CheckDB()
	h.StopPlugins()
	UnmountAll(h)
	detachLoops(h)
	h.Must(h.Log.Close())
	h.UnguardAll()
	h.Must(os.RemoveAll(h.Dir))
}

// CheckDB asserts that the state database is consistent.
func (h *Host) CheckDB() {
	h.T.Helper()
	path := filepath.Join(h.Dir, "d", "state.db")
	if err := statedb.Check(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.T.Errorf("the state database does not pass its check: %v", err)
	}
}

// StopPlugins kills all plugin processes whose socket is below this host's directory.
func (h *Host) StopPlugins() {
	for _, pid := range h.PluginPIDs() {
		_ = syscall.Kill(pid, syscall.SIGCONT) // the process may have ended
		_ = syscall.Kill(pid, syscall.SIGKILL)
		h.Await("the plugin's end", func() bool { return ProcessEnded(pid) })
	}
}

// PluginPIDs returns the pids of this host's plugins whose environment contains all given texts.
func (h *Host) PluginPIDs(more ...string) (pids []int) {
	h.T.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	h.Must(err)
	for _, path := range environs {
		raw, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(raw, []byte("CSI_ENDPOINT=unix://"+h.Dir+"/")) ||
			slices.ContainsFunc(more, func(m string) bool { return !bytes.Contains(raw, []byte(m)) }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		h.Must(err)
		pids = append(pids, pid)
	}
	return pids
}

// UnmountAll unmounts all mounts below the host's directory.
func UnmountAll(h *Host) {
	lines := strings.Split(strings.TrimSpace(h.Mounts()), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 {
			h.Must(syscall.Unmount(f[4], syscall.MNT_DETACH))
		}
	}
}

// detachLoops detaches the loop devices whose files are below the host's directory. Some loop
// devices detach themselves after the unmount of their file system.
func detachLoops(h *Host) {
	h.Await("the loop devices to go", func() bool {
		out, err := exec.Command("losetup", "-l", "-n", "-O", "NAME,BACK-FILE").Output()
		h.Must(err)
		none := true
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], h.Dir+"/") {
				none = false
				_ = exec.Command("losetup", "-d", f[0]).Run() // the next round checks the result
			}
		}
		return none
	})
}
