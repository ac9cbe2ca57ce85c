package harness

import (
	"bytes"
	"cmp"
	"errors"
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

	Program string // path of the agent's binary, or "" for the binary of this tree
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

// hostDirs contains the directories of all hosts that the tests have created.
var (
	hostDirs   []string
	hostDirsMu sync.Mutex
)

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

// Must ends the test if an error occurred.
func (h *Host) Must(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// Socket returns the path of the agent's socket.
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

// StartFails starts an agent that must fail to start. It returns the agent's output.
func (h *Host) StartFails(more ...string) string {
	h.T.Helper()
	cmd := exec.Command(filepath.Join(BinDir, "volagent"), append(h.Args(), more...)...)
	cmd.Env = h.Env
	out, err := cmd.CombinedOutput()
	if err == nil {
		h.T.Fatalf("an agent with %v started:\n%s", more, out)
	}
	return string(out)
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

// WhileFrozen stops the agent while do runs, so that the agent sees either all effects of do or
// none. Otherwise the agent could see a part of them when it checks the volume after its last step.
func (h *Host) WhileFrozen(do func()) {
	h.T.Helper()
	agent := h.Cmd.Process
	h.Must(agent.Signal(syscall.SIGSTOP))
	defer func() { h.Must(agent.Signal(syscall.SIGCONT)) }()
	h.Await("the agent to stand still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", agent.Pid))
		h.Must(err)
		return strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") T")
	})
	do()
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

// PluginPID returns the process id of a plugin, or 0 if the plugin has no process.
func (h *Host) PluginPID(id string) int {
	h.T.Helper()
	pid, err := strconv.Atoi(h.Volctl("plugin", "status", id, "-o", "go-template={{.pid}}"))
	if err != nil {
		return 0
	}
	return pid
}

// ReadFiles returns the concatenated content of all files that match a pattern.
func (h *Host) ReadFiles(pattern string) (text string) {
	h.T.Helper()
	names, err := filepath.Glob(filepath.Join(h.Dir, pattern))
	h.Must(err)
	for _, name := range names {
		raw, err := os.ReadFile(name)
		h.Must(err)
		text += string(raw)
	}
	return text
}

// Mkdir creates a directory in the host's directory and returns its path.
func (h *Host) Mkdir(name string) string {
	h.T.Helper()
	dir := filepath.Join(h.Dir, name)
	h.Must(os.Mkdir(dir, 0o755))
	return dir
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
