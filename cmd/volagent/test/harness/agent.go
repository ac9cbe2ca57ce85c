package harness

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/volagent/volagent/statedb"
)

// Start starts the agent. It waits until the agent answers and the given plugins are ready.
func (h *Host) Start(plugins ...string) {
	h.T.Helper()
	h.Launch()
	h.Volctl("wait", "--timeout", "60s")
	for _, p := range plugins {
		h.Volctl("wait", "--plugin", p, "--timeout", "60s")
	}
}

// Launch starts the agent and does not wait for it.
func (h *Host) Launch() {
	h.T.Helper()
	argv := append(slices.Clone(h.Wrapper), cmp.Or(h.Program, filepath.Join(BinDir, "volagent")))
	argv = append(argv, h.Args()...)
	h.Cmd = exec.Command(argv[0], argv[1:]...)
	h.Cmd.Env, h.Cmd.Stderr = h.Env, h.Log
	h.Must(h.Place.Enter(h.Cmd.Start))
}

// StartFails starts an agent that must fail to start. It returns the agent's output.
func (h *Host) StartFails(more ...string) string {
	h.T.Helper()
	cmd := exec.Command(filepath.Join(BinDir, "volagent"), append(h.Args(), more...)...)
	cmd.Env = h.Env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := RunIn(h.Place, cmd); err == nil {
		h.T.Fatalf("an agent with %v started:\n%s", more, out.String())
	}
	return out.String()
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

// WhileFrozen suspends the agent while the function do runs. When the agent continues, it sees all
// effects of do at once. Otherwise the agent could see only some of the effects.
func WhileFrozen(h *Host, do func()) {
	h.T.Helper()
	agent := h.Cmd.Process
	Freeze(h, agent)
	defer func() { h.Must(agent.Signal(syscall.SIGCONT)) }()
	do()
}

// Freeze suspends a process and waits until it has stopped.
func Freeze(h *Host, p *os.Process) {
	h.T.Helper()
	h.Must(p.Signal(syscall.SIGSTOP))
	h.Await("the process to stand still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		h.Must(err)
		return strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") T")
	})
}

// CheckDB asserts that the state database is consistent.
func (h *Host) CheckDB() {
	h.T.Helper()
	path := filepath.Join(h.Dir, "d", "state.db")
	if err := statedb.Check(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.T.Errorf("the state database does not pass its check: %v", err)
	}
}

// PluginPID returns the pid of a plugin, or 0 if the plugin has no process.
func (h *Host) PluginPID(id string) int {
	h.T.Helper()
	pid, err := strconv.Atoi(h.Volctl("plugin", "status", id, "-o", "go-template={{.pid}}"))
	if err != nil {
		return 0
	}
	return h.Place.PID(pid)
}

// PluginPIDs returns the pids of all plugin processes of this host whose environment contains all
// given texts.
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

// StopPlugins kills all plugin processes of this host.
func (h *Host) StopPlugins() {
	for _, pid := range h.PluginPIDs() {
		_ = syscall.Kill(pid, syscall.SIGCONT) // Kill fails if the process has already ended
		_ = syscall.Kill(pid, syscall.SIGKILL)
		h.Await("the plugin's end", func() bool { return ProcessEnded(pid) })
	}
}
