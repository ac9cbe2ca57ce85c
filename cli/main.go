// Package cli implements volctl, the operator's command-line tool. Each command has a file of its
// own. Output, errors, exit codes and the parsing of argv have one place each. volctl learns about
// the host from the agent, over the agent's socket. Only mount and umount look at the host
// themselves: at the mount point that they are given. Under the name mount.csi or umount.csi, the
// program is a helper of mount(8).
package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Env is everything that a run takes from its process and its host. Tests make their own.
type Env struct {
	Environment

	// Host is used by mount, umount and systemd only.
	Host Host
}

// Main runs volctl with this process's arguments and returns its exit code. The first SIGINT or
// SIGTERM cancels the command, which withdraws a claim that it waits for. The second signal ends
// the process.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	context.AfterFunc(ctx, stop)
	return Run(ctx, Env{Host: thisHost(), Environment: Environment{
		Program:        os.Args[0],
		Args:           os.Args[1:],
		Stdin:          os.Stdin,
		Stdout:         os.Stdout,
		Stderr:         os.Stderr,
		Getenv:         os.Getenv,
		StdinTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StderrColumns:  func() int { return columns(os.Stderr) },
		Now:            time.Now,
		Cgroup:         func() ([]byte, error) { return os.ReadFile("/proc/self/cgroup") },
		Service:        askService,
	}})
}

// Run runs one command and returns its exit code (see exitCode), or the exit code for mount(8) (see
// helperCode). It may be called several times in one process.
func Run(ctx context.Context, env Env) int {
	if h := newHelper(env.Environment, env.Host); h != nil {
		return h.run(ctx)
	}

	a := newApp(env.Environment)
	root := newRoot(a, env.Host)
	root.SetArgs(normalise(root, env.Args))

	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}

	return exitCode(a.report(err))
}
