// Package cli is volctl, the operator's tool: one file per command, and one
// place each for output, errors, exit codes and the reading of argv. What it
// knows of the host it learns from the agent, over its socket; only mount and
// umount look at the mount point they are given themselves. Called by the name
// mount.csi or umount.csi it is a helper of mount(8).
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Env is what a run takes from its process; a test makes its own.
type Env struct {
	// Program is the name this was called by; its directory does not matter.
	Program string
	// Args are the arguments without the program's name.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// StdinTerminal allows questions, StdoutTerminal colours.
	StdinTerminal, StdoutTerminal bool
	// StderrColumns is how wide the terminal is that stderr is; 0 if it is none. It may
	// be nil.
	StderrColumns func() int
	// Now and its location are what times on the screen are told against.
	Now func() time.Time
	// Pause waits, unless ctx ends first; nil is by the clock.
	Pause func(ctx context.Context, d time.Duration) error
	// Cgroup is the content of /proc/self/cgroup; it says which service calls.
	Cgroup func() ([]byte, error)
	// Service asks systemd about a unit, by the names of its properties; nil where nobody
	// can be asked.
	Service func(ctx context.Context, unit string) map[string]string
	// Host is for mount and umount alone.
	Host Host
}

// Main runs volctl with this process's arguments and returns its exit code.
// The first SIGINT or SIGTERM cancels what is under way, which takes back a
// claim that is waited for; the second ends the process.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return Run(ctx, Env{
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
		Host:           thisHost(),
	})
}

// Run runs one command and returns the exit code of package comment's table
// (see exitCode), or mount(8)'s (see helperCode). It may be called again and again.
func Run(ctx context.Context, env Env) int {
	if h := newHelper(env); h != nil {
		return h.run(ctx)
	}
	a := newApp(env)
	root := newRoot(a)
	root.SetArgs(normalise(root, env.Args))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	return a.report(err)
}
