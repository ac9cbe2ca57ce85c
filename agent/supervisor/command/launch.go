package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/volagent/volagent/agent/supervisor/transient"
)

// prefix begins the names of the services and cgroups of all plugins.
const prefix = "volagent-plugin-"

// serviceName returns the name of the unit for one instance of a part.
func serviceName(slot, nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return prefix + shown(slot) + "-" + hex.EncodeToString(sum[:6]) + ".service"
}

// shown returns the slot in a form that is allowed in a unit's name, which has at most 255 bytes.
func shown(slot string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(":._-", c) {
			return c
		}
		return '_'
	}, slot[:min(len(slot), 100)])
}

// launch starts the process and returns its pid. served reports that the process is, or was, in its
// own service.
func (r *Runner) launch(ctx context.Context, cmd *exec.Cmd, nonce string) (pid int, served bool, err error) {
	if r.services.Enabled() {
		pid, err := r.services.Start(ctx, serviceName(r.Slot, nonce), fmt.Sprintf("CSI plugin %s, run by volagent", r.Slot), cmd)
		if !errors.Is(err, transient.ErrNoService) {
			return pid, true, err
		}
		r.Logger.Warn("the plugin is started in the agent's own service: it is restricted as that is, and whoever kills all of that kills it", "error", err)
	}

	pid, err = r.fork(cmd, nonce)
	if err != nil {
		r.Record.ForgetProcess()
	}

	return pid, false, err
}

// fork starts the process as a child of the agent, if possible in its own cgroup.
func (r *Runner) fork(cmd *exec.Cmd, nonce string) (pid int, err error) {
	plain := exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr, SysProcAttr: cmd.SysProcAttr}
	if group, err := r.group(nonce); err == nil {
		defer group.Close() //nolint:errcheck // nothing was written to the directory

		attr := *cmd.SysProcAttr
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
		cmd.SysProcAttr = &attr
	}

	err = cmd.Start()
	if err != nil && cmd.SysProcAttr.UseCgroupFD {
		// The cgroup may be the reason.
		r.dropGroup(nonce)
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
