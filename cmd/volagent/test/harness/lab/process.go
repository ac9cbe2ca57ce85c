package lab

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process is a process that a test has started on a host.
type Process struct {
	*os.Process     // with the pid that the test sees
	Inner       int // the pid that the host sees

	h     *Host
	ended chan struct{} // closed when the process has ended
	err   error         // how the process ended; valid after ended is closed
}

// Spawn starts a process on the host. It ends at the latest when the host is switched off. The output
// goes to the writer, which may be nil.
func (h *Host) Spawn(output io.Writer, argv ...string) *Process {
	h.T.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.Env, output, output
	h.Must(h.Enter(cmd.Start))
	p := &Process{Process: cmd.Process, h: h, ended: make(chan struct{})}
	pids := allPIDs(cmd.Process.Pid)
	if len(pids) < 2 {
		h.T.Fatalf("process %d is not on %s: %v", cmd.Process.Pid, h.Name, pids)
	}
	p.Inner = pids[1]
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	h.started = append(h.started, p)
	return p
}

// StartSleeper starts a process that only sleeps and whose working directory is dir.
func (h *Host) StartSleeper(dir string) *Process {
	h.T.Helper()
	return h.Spawn(nil, "env", "-C", dir, "sleep", "infinity")
}

// Owner returns the value of the flag --owner that makes the process the owner of a claim.
func (p *Process) Owner() string { return fmt.Sprintf("pid:%d", p.Inner) }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// End sends a signal to the process, which must still run, and waits for its end. It returns the error
// of exec.Cmd.Wait.
func (p *Process) End(sig syscall.Signal) error {
	p.h.T.Helper()
	p.h.Must(p.Signal(sig))
	<-p.ended
	return p.err
}

// allPIDs returns the pids of a process in its own pid namespace and in those above it. The outermost
// one is the first.
func allPIDs(pid int) (pids []int) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil // the process has ended
	}
	_, rest, _ := bytes.Cut(raw, []byte("\nNSpid:"))
	line, _, _ := strings.Cut(string(rest), "\n")
	for f := range strings.FieldsSeq(line) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil
		}
		pids = append(pids, n)
	}
	return pids
}

// outerPID returns the pid, as the test sees it, of the process that has the given pid in the pid
// namespace of the holder. If there is no such process, outerPID returns 0.
func outerPID(holder, inner int) int {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", holder))
	if err != nil {
		return 0
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for _, path := range all {
		if ns, err := os.Readlink(path); err != nil || ns != space {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			continue
		}
		if pids := allPIDs(pid); len(pids) > 1 && pids[len(pids)-1] == inner {
			return pid
		}
	}
	return 0
}
