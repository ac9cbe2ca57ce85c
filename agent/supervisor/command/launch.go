package command

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor/transient"
)

// launcher starts the processes of one part.
type launcher struct {
	slot     string
	services *transient.Services
	log      hclog.Logger
}

// launch starts the process and returns its pid. If served is true, systemd runs the process in its
// own service. If served is false and launch returns an error, the process does not exist.
func (l launcher) launch(ctx context.Context, cmd *exec.Cmd, nonce string) (pid int, served bool, err error) {
	if l.services.Enabled() {
		pid, err := l.services.Start(ctx, serviceName(l.slot, nonce), fmt.Sprintf("CSI plugin %s, run by volagent", l.slot), cmd)
		if !errors.Is(err, transient.ErrNoService) {
			return pid, true, err
		}
		l.log.Warn("the plugin runs in the agent's own service; it has the restrictions of that service, and a kill of the whole service ends it", "error", err)
	}

	pid, err = l.fork(cmd, nonce)
	return pid, false, err
}

// fork starts the process as a child of the agent, and puts it into its own cgroup if possible.
func (l launcher) fork(cmd *exec.Cmd, nonce string) (pid int, err error) {
	plain := exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr, SysProcAttr: cmd.SysProcAttr}
	if group, err := openGroup(l.slot, nonce); err == nil {
		defer group.Close() //nolint:errcheck // the agent wrote nothing to the directory

		attr := *cmd.SysProcAttr
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
		cmd.SysProcAttr = &attr
	}

	err = cmd.Start()
	if err != nil && cmd.SysProcAttr.UseCgroupFD {
		// The cgroup may be the reason for the failure, so try again without it.
		dropGroup(l.slot, nonce)
		cmd = &plain
		err = cmd.Start()
	}

	if err != nil {
		return 0, transient.StartError(cmd.Path, err)
	}

	// The agent monitors its child through a pidfd, like a process that an earlier agent started.
	// Until the agent reaps the child, the pid and the start time identify it.
	pid = cmd.Process.Pid
	if err := cmd.Process.Release(); err != nil {
		return 0, fmt.Errorf("cannot release process %d: %w", pid, err)
	}

	return pid, nil
}
