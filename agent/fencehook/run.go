package fencehook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience limits the wait for the end of a process that was killed, and for processes that hold the
// output of a hook open after its end.
const patience = time.Second

// program is a program that run starts. No argument and no variable contains a secret.
type program struct {
	path    string // the file to execute
	name    string // the path in the configuration
	args    []string
	env     []string
	stdin   string
	secrets []string // the secrets in stdin, which must not appear in the output
}

// run runs a program, and waits until it ends, but no longer than the limit and the context permit.
// Then it kills all processes of the program's process group. It waits for no other process, even if
// one holds the output of the program open.
func run(ctx context.Context, p program, limit time.Duration) ending {
	if ctx.Err() != nil {
		return ending{failure: cancelled(ctx)}
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	stdout := &tail{max: maxOutput}
	both := &tail{max: maxOutput + longest(p.secrets)}
	cmd := p.command(io.MultiWriter(stdout, both), both)

	// The kernel sends the signal of Pdeathsig when the thread ends that has started the program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return ending{failure: err}
	}

	pid := cmd.Process.Pid
	exited := make(chan struct{})
	go func() {
		awaitExit(pid)
		close(exited)
	}()
	inTime := true
	select {
	case <-exited:
	case <-timed.Done():
		inTime = false
	}

	// Only wait, below, reaps the process. Until then, no other process can get its id.
	_ = unix.Kill(-pid, unix.SIGKILL)
	e := ending{started: true}
	switch ended := wait(cmd); {
	case !ended:
		e.failure = fmt.Errorf("process %d cannot be killed; it waits for a device or a file system", pid)
	case !inTime && ctx.Err() == nil:
		e.failure = fmt.Errorf("it did not end within %s, and was killed", limit)
	case !inTime:
		e.failure = cancelled(ctx)
	default:
		e.code, e.signal = exitOf(cmd)
	}

	e.stdout, _ = stdout.text()
	e.output = shown(both, p.secrets)
	return e
}

// errCancelled means that the caller's context ended before the program did.
var errCancelled = errors.New("the request was cancelled, or took too long")

// cancelled returns the reason for which the caller's context has ended.
func cancelled(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ctx.Err()) {
		return errCancelled
	}
	return fmt.Errorf("the request was cancelled: %w", cause)
}

// command returns the command that runs the program.
func (p program) command(stdout, stderr io.Writer) *exec.Cmd {
	cmd := &exec.Cmd{
		Path: p.path, Args: append([]string{p.name}, p.args...), Env: p.env, Dir: "/",
		Stdout: stdout, Stderr: stderr,
		WaitDelay: patience,
		// If the agent dies, the kernel kills the program. An off must not take effect at some later
		// time, when the host may be in use again.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	if p.stdin != "" {
		cmd.Stdin = strings.NewReader(p.stdin)
	}
	return cmd
}

// awaitExit waits until a child process has ended, and does not reap it.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// wait reaps a process that has ended or was killed, and reports whether it has ended. A process that
// waits for a device that does not answer cannot be killed.
func wait(cmd *exec.Cmd) bool {
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // exitOf reads the result, also if the output was not closed in time
		close(ended)
	}()

	timer := time.NewTimer(3 * patience)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// exitOf returns the exit status of a process, or the signal that has killed it.
func exitOf(cmd *exec.Cmd) (code int, signal string) {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return -1, unix.SignalName(status.Signal())
	}
	return cmd.ProcessState.ExitCode(), ""
}
