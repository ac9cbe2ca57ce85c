// Package cli implements volctl, the operator's command-line tool: its root command, its short
// names and its exit codes. Each noun has a package of its own (volume, plugin, node, mount, state,
// systemd). They share the packages command and output. volctl learns about the host from the
// agent, over the agent's socket. Only mount and umount look at the host themselves. Under the name
// mount.csi or umount.csi, the program is a helper of mount(8).
package cli

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
	"github.com/volagent/volagent/cli/node"
	"github.com/volagent/volagent/cli/output"
	"golang.org/x/term"
)

// Env is everything that a run takes from its process and its host. Tests make their own.
type Env struct {
	command.Env

	// Host is used by mount, umount and systemd only.
	Host mount.Host
}

// Main runs volctl with this process's arguments and returns its exit code. The first SIGINT or
// SIGTERM cancels the command, which withdraws a claim that it waits for. The second signal ends
// the process.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	context.AfterFunc(ctx, stop)
	return Run(ctx, Env{Host: mount.ThisHost(), Env: command.Env{
		Program:        os.Args[0],
		Args:           os.Args[1:],
		Stdin:          os.Stdin,
		Stdout:         os.Stdout,
		Stderr:         os.Stderr,
		Getenv:         os.Getenv,
		StdinTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		StdoutColumns:  func() int { return output.Columns(os.Stdout) },
		StderrColumns:  func() int { return output.Columns(os.Stderr) },
		Now:            time.Now,
		Cgroup:         func() ([]byte, error) { return os.ReadFile("/proc/self/cgroup") },
		Device:         devicePath,
		Service:        node.AskService,
	}})
}

// Run runs one command and returns its exit code (see exitCode), or the exit code for mount(8) (see
// mount.Helper). It may be called several times in one process.
func Run(ctx context.Context, env Env) int {
	if h := mount.NewHelper(env.Env, env.Host); h != nil {
		return h.Run(ctx)
	}

	a := command.NewApp(env.Env)
	root := newRoot(a, env.Host)
	root.SetArgs(command.Normalise(root, env.Args))

	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}

	return exitCode(a.Report(err))
}

// devicePath finds a block device by its number in sysfs. The names there are those below /dev,
// with an exclamation mark for each slash.
func devicePath(number string) string {
	link, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return ""
	}
	return "/dev/" + strings.ReplaceAll(filepath.Base(link), "!", "/")
}
