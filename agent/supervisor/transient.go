package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/proc"
)

// Under systemd a command runs as its own service, beside the agent's. Stopping, killing or
// upgrading the agent's service therefore does not affect any plugin. The process is identified and
// watched like a forked one. The name of the service comes from the nonce. So the service can be
// found before its process is known, and no other program can have made it.

const (
	// pluginSlice contains the services. A shutdown does not stop this slice before the end. A
	// slice made at run time would be stopped among the first, regardless of its properties, and
	// its services with it.
	pluginSlice = "system.slice"
	// serviceWithin bounds the start of a service, which only starts a process.
	serviceWithin = 15 * time.Second
	// wordsWithin bounds a query to systemd about how a process ended.
	wordsWithin = 2 * time.Second
)

// ownStatus is the first of the exit statuses that systemd itself reports for commands that it
// cannot execute (systemd.exec(5)).
const ownStatus = 200

// errNoService says that no service exists. Only then is a fork not a second start.
var errNoService = errors.New("systemd does not run it as a service")

// serviceName returns the name of the unit for one instance of a part.
func serviceName(slot, nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return groupPrefix + shown(slot) + "-" + hex.EncodeToString(sum[:6]) + ".service"
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
func (r *execRunner) launch(ctx context.Context, cmd *exec.Cmd, nonce string) (pid int, served bool, err error) {
	if len(r.p.s.opts.ServiceArgv) > 0 {
		pid, err := r.serve(ctx, cmd, nonce)
		if !errors.Is(err, errNoService) {
			return pid, true, err
		}
		r.p.log.Warn("the plugin is started in the agent's own service: it is restricted as that is, and whoever kills all of that kills it", "error", err)
	}

	pid, err = r.fork(cmd, nonce)
	if err != nil {
		r.p.forgetProcess()
	}

	return pid, false, err
}

// fork starts the process as a child of the agent, if possible in its own cgroup.
func (r *execRunner) fork(cmd *exec.Cmd, nonce string) (pid int, err error) {
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
		return 0, startError(cmd.Path, err)
	}

	// The agent watches the process through its own pidfd, like one that an earlier agent started.
	// Until the process is reaped there, its pid and start time stay valid.
	pid = cmd.Process.Pid
	if err := cmd.Process.Release(); err != nil {
		return 0, fmt.Errorf("cannot let go of process %d: %w", pid, err)
	}

	return pid, nil
}

// serve starts the process as a service. The error wraps errNoService if certainly no service
// exists. After any other error there may be one, which Find finds.
func (r *execRunner) serve(ctx context.Context, cmd *exec.Cmd, nonce string) (pid int, err error) {
	ctx, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()

	bus, name := r.p.s.opts.Systemd, serviceName(r.p.slot, nonce)
	if err := reach(ctx, bus); err != nil {
		return 0, err
	}

	mem, err := launchOf(cmd).pack()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoService, err)
	}
	defer mem.Close() //nolint:errcheck // it is in memory

	log, ok := cmd.Stdout.(*os.File)
	if !ok {
		return 0, fmt.Errorf("%w: its output is no file", errNoService)
	}

	result, err := bus.StartTransient(ctx, systemd.Transient{
		Name: name, Description: fmt.Sprintf("CSI plugin %s, run by volagent", r.p.slot), Slice: pluginSlice,
		Argv: r.p.s.opts.ServiceArgv, Stdin: mem, Output: log, OOMScore: oomScore(), NoFile: hardLimit(unix.RLIMIT_NOFILE), Core: hardLimit(unix.RLIMIT_CORE),
	})

	if err != nil {
		if systemd.IsAnswer(err) {
			return 0, fmt.Errorf("%w: %w", errNoService, err)
		}

		// A late start finds nothing to run.
		return 0, errors.Join(err, mem.Truncate(0))
	}

	s, err := bus.Service(ctx, name, false)
	switch {
	case err != nil:
		return 0, err
	case result != systemd.JobDone && s.MainPID == 0 && (s.ExecCode == 0 || s.ExecStatus >= ownStatus):
		r.letGo(name)
		return 0, fmt.Errorf("%w: systemd cannot start it: %s, %s", errNoService, result, ending(s))
	case s.MainPID == 0:
		return s.ExecPID, nil // it has ended already
	default:
		return s.MainPID, nil
	}
}

// reach connects to systemd. If that fails, systemd was not asked for anything, so no service
// exists.
func reach(ctx context.Context, bus *systemd.Bus) error {
	if _, err := bus.Connect(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNoService, err)
	}
	return nil
}

// letGo makes systemd forget a service that has ended.
func (r *execRunner) letGo(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), wordsWithin)
	defer cancel()
	if err := r.p.s.opts.Systemd.Unref(ctx, name); err != nil {
		r.p.log.Debug("cannot let go of a service", "unit", name, "error", err)
	}
}

// oomScore returns the score of the agent itself: plugins are as important as the agent.
func oomScore() int {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}

	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}

	return score
}

// hardLimit returns the agent's own hard limit of a resource, to which a plugin may raise its
// limit. It returns 0 if the limit is unknown.
func hardLimit(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return 0
	}
	return limit.Max
}

// inService reports whether a process is in a service's cgroup.
func inService(pid int, name string) bool {
	groups, err := proc.Cgroups(pid)
	return err == nil && slices.ContainsFunc(groups, func(g proc.Cgroup) bool { return path.Base(g.Path) == name })
}

// findService finds the process of a service that an agent was about to start when it died; 0 if
// there is none. It waits for a service that has no process yet.
func (r *execRunner) findService(ctx context.Context, nonce string) (pid int, err error) {
	bus := r.p.s.opts.Systemd
	if bus == nil || len(r.p.s.opts.ServiceArgv) == 0 {
		return 0, nil
	}

	ctx, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()

	if _, err := bus.Connect(ctx); err != nil {
		return 0, nil // if systemd does not answer, it did not make a service either
	}

	name := serviceName(r.p.slot, nonce)
	changed := bus.Watch(name)
	defer changed.Close()

	for {
		s, err := bus.Service(ctx, name, false)
		switch {
		case err != nil:
			return 0, err
		case s.MainPID != 0:
			return s.MainPID, nil
		case s.Down() && !s.Queued:
			return 0, nil
		}

		select {
		case <-changed.C:
		case <-time.After(rescan):
		case <-ctx.Done():
			return 0, fmt.Errorf("cannot tell whether the plugin was started: systemd is still at it: %w", ctx.Err())
		}
	}
}

// keep makes systemd remember how the service of a process ends. It reports whether the process is
// in that service and systemd remembers it.
func (r *execRunner) keep(ctx context.Context, pid int, nonce string) bool {
	name := serviceName(r.p.slot, nonce)
	if r.p.s.opts.Systemd == nil || !inService(pid, name) {
		return false
	}

	kept, err := r.p.s.opts.Systemd.Ref(ctx, name)
	if err != nil {
		r.p.log.Debug("cannot have systemd remember how the plugin ends", "error", err)
	}

	return kept
}

// served returns the function that describes how a process in a service ended.
func (r *execRunner) served(nonce string) func(pid int) string {
	return func(pid int) string {
		name := serviceName(r.p.slot, nonce)
		s := awaitEnd(r.p.s.opts.Systemd, name, pid)
		r.letGo(name)
		return ending(s)
	}
}

// awaitEnd queries a service until systemd has also noticed the end of its process. It returns the
// zero value if nothing is known.
func awaitEnd(bus *systemd.Bus, name string, pid int) systemd.Service {
	ctx, cancel := context.WithTimeout(context.Background(), wordsWithin)
	defer cancel()

	changed := bus.Watch(name)
	defer changed.Close()

	for {
		s, err := bus.Service(ctx, name, false)
		switch {
		case err != nil, s.ID == "":
			return systemd.Service{}
		case s.ExecPID != pid, s.ExecCode != 0:
			return s
		}

		select {
		case <-changed.C:
		case <-time.After(rescan):
		case <-ctx.Done():
			return systemd.Service{}
		}
	}
}

// ending describes how the main process of a service ended.
func ending(s systemd.Service) string {
	const exited, killed, dumped = 1, 2, 3 // CLD_*
	const notExecuted = 203                // systemd.exec(5)
	var words string
	switch {
	case s.ExecCode == exited && s.ExecStatus == notExecuted:
		words = "could not be executed (status 203)"
	case s.ExecCode == exited:
		words = fmt.Sprintf("exited with status %d", s.ExecStatus)
	case s.ExecCode == killed, s.ExecCode == dumped:
		words = fmt.Sprintf("killed by signal %d (%s)", s.ExecStatus, unix.SignalName(unix.Signal(s.ExecStatus)))
	default:
		return "ended; how is unknown"
	}

	switch s.Result {
	case "", "success", "exit-code", "signal", "core-dump":
		return words
	default: // oom-kill, watchdog, timeout …
		return words + " (" + s.Result + ")"
	}
}
