package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Process is a process that a test has started on a host.
type Process struct {
	*os.Process     // with the pid that the test sees
	Inner       int // the pid that the host sees

	t     testing.TB
	ended chan struct{} // closed when the process has ended
	err   error         // how the process ended; valid after ended is closed
}

// watch returns the process of a command that has been started in another pid namespace. It waits for
// the end of the process in the background.
func watch(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	pids := allPIDs(cmd.Process.Pid)
	if len(pids) < 2 {
		t.Fatalf("process %d is in no other pid namespace: %v", cmd.Process.Pid, pids)
	}
	p := &Process{Process: cmd.Process, Inner: pids[1], t: t, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p
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
	p.t.Helper()
	if err := p.Signal(sig); err != nil {
		p.t.Fatalf("cannot send %v to process %d: %v", sig, p.Pid, err)
	}
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
