package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// Process is a plugin's process that the agent monitors through a pidfd. It may be the child of an
// earlier agent, because a plugin keeps running when the agent ends.
type Process struct {
	pid   int
	start uint64
	fd    *os.File

	done  chan struct{} // closed when the process has ended
	ended chan struct{} // closed when the monitoring goroutine has finished
	exit  string        // how the process ended; valid after done is closed
}

// Finished returns a Process for a process that ended before the agent could monitor it.
func Finished(pid int, exit string) *Process {
	p := &Process{pid: pid, exit: exit, done: make(chan struct{}), ended: make(chan struct{})}
	close(p.done)
	close(p.ended)
	return p
}

// OpenProcess monitors the process with the given pid and start time. When the process ends, it
// calls the function how, which describes the end. OpenProcess returns nil if the process has
// already ended, or if another process has the same pid now.
func OpenProcess(pid int, start uint64, how func(pid int) string) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot watch process %d: %w", pid, err)
	}

	p := &Process{pid: pid, start: start, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{}), ended: make(chan struct{})}
	// Compare the start time only after the pidfd was opened, because the pid cannot be reused from
	// then on. Accept a zombie, because the agent then notices its end at once and reaps it.
	if st, err := proc.ReadStat(pid); err != nil || !st.Began(start) {
		return nil, p.fd.Close() // the process has ended, which is not an error
	}

	conn, err := p.fd.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch process %d: %w", pid, err), p.fd.Close())
	}

	go func() {
		defer close(p.ended)

		// The goroutine waits in the poller of the Go runtime, so it needs no thread.
		if err := conn.Read(pidfdReadable); err != nil {
			return // Release closed the pidfd
		}

		p.exit = how(pid)
		close(p.done)
	}()

	return p, nil
}

// pidfdReadable reports whether the process has ended. Only then is its pidfd readable.
func pidfdReadable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// Reap collects the exit status of a child that has ended, and describes it. If the process is not
// a child of the agent, the exit status is unknown.
func Reap(pid int) string {
	var ws unix.WaitStatus
	got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
	switch {
	case err != nil || got != pid:
		return "ended with an unknown status, because an earlier agent started it"
	case ws.Signaled():
		return fmt.Sprintf("killed by signal %d (%s)", int(ws.Signal()), unix.SignalName(ws.Signal()))
	default:
		return fmt.Sprintf("exited with status %d", ws.ExitStatus())
	}
}

// PID implements Instance.
func (p *Process) PID() int { return p.pid }

// Key implements Instance.
func (p *Process) Key() string { return fmt.Sprintf("%d@%d", p.pid, p.start) }

// Done implements Instance.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit implements Instance.
func (p *Process) Exit() string { return p.exit }

// Restarts implements Instance. It returns false, because only the agent starts the next process.
func (p *Process) Restarts() bool { return false }

// Stale implements runner.Instance. It always returns false, because a new process is a new
// instance.
func (p *Process) Stale() bool { return false }

// Stop ends the process with SIGTERM, and after the grace time with SIGKILL. It signals only the
// plugin's own process, not the process group, because FUSE daemons in the group provide mounts.
// Stop returns early if ctx ends.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}

	timer := time.NewTimer(grace)
	defer timer.Stop()

	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}

	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}

	// Wait even after SIGKILL: a process in an uninterruptible system call dies later, and the
	// agent must not start a second instance before that.
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	if p.fd == nil {
		return nil // the process has already ended
	}

	conn, err := p.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, err)
	}

	var sent error
	err = conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if err = errors.Join(err, sent); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, err)
	}

	return nil
}

// Release implements Instance. The process continues without being monitored.
func (p *Process) Release() error {
	if p.fd == nil {
		return nil
	}

	err := p.fd.Close()
	<-p.ended
	return err
}
