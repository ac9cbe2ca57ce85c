// Package cli implements volctl, the operator's command-line tool. It contains the root command,
// the short command names and the exit codes. Each group of commands has its own package: volume,
// plugin, node, mount, state, systemd and failover. These packages share the packages command and
// output.
//
// volctl gets its information from the agent, over the agent's socket. Only the commands mount,
// umount and failover examine the host themselves. If the program is started under the name
// mount.csi or umount.csi, it works as a helper of mount(8).
package cli

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
	"github.com/volagent/volagent/cli/node"
	"github.com/volagent/volagent/cli/output"
)

// Env holds the inputs and functions that a run gets from its process and its host. Tests replace
// them.
type Env struct {
	command.Env

	// Host gives the commands mount, umount and systemd access to the host. No other command uses
	// it.
	Host mount.Host
}

// Main runs volctl with the arguments of this process and returns the exit code. The first SIGINT
// or SIGTERM cancels the command. If the command waits for a claim, it withdraws the claim. The
// second signal ends the process immediately.
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

// Run runs one command and returns its exit code. The codes are those of volctl (exitCode), or of
// mount(8) if the program is a helper (mount.Helper). A process may call Run several times.
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

// devicePath finds the path of the block device with the given number in sysfs. sysfs uses the
// names below /dev, but with "!" in place of each slash.
func devicePath(number string) string {
	link, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return ""
	}
	return "/dev/" + strings.ReplaceAll(filepath.Base(link), "!", "/")
}
