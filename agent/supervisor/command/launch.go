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

// launch starts the process and returns its pid. served reports that the process is, or was, in its
// own service. Without served, an error means that there is no process.
func (l launcher) launch(ctx context.Context, cmd *exec.Cmd, nonce string) (pid int, served bool, err error) {
	if l.services.Enabled() {
		pid, err := l.services.Start(ctx, serviceName(l.slot, nonce), fmt.Sprintf("CSI plugin %s, run by volagent", l.slot), cmd)
		if !errors.Is(err, transient.ErrNoService) {
			return pid, true, err
		}
		l.log.Warn("the plugin is started in the agent's own service: it is restricted as that is, and whoever kills all of that kills it", "error", err)
	}

	pid, err = l.fork(cmd, nonce)
	return pid, false, err
}

// fork starts the process as a child of the agent, if possible in its own cgroup.
func (l launcher) fork(cmd *exec.Cmd, nonce string) (pid int, err error) {
	plain := exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr, SysProcAttr: cmd.SysProcAttr}
	if group, err := openGroup(l.slot, nonce); err == nil {
		defer group.Close() //nolint:errcheck // nothing was written to the directory

		attr := *cmd.SysProcAttr
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
		cmd.SysProcAttr = &attr
	}

	err = cmd.Start()
	if err != nil && cmd.SysProcAttr.UseCgroupFD {
		// The cgroup may be the reason.
		dropGroup(l.slot, nonce)
		cmd = &plain
		err = cmd.Start()
	}

	if err != nil {
		return 0, transient.StartError(cmd.Path, err)
	}

	// The agent watches the process through its own pidfd, like one that an earlier agent started.
	// Until the process is reaped there, its pid and start time stay valid.
	pid = cmd.Process.Pid
	if err := cmd.Process.Release(); err != nil {
		return 0, fmt.Errorf("cannot let go of process %d: %w", pid, err)
	}

	return pid, nil
}
