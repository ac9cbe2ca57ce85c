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

// Under systemd a command runs as a service of its own, beside the agent's: whoever stops, kills or upgrades the agent's service reaches no
// plugin. The process is known and watched like one that was forked. The
// service's name comes from the nonce, so it can be found before its process is
// known, and nobody else can have made it.

const (
	// pluginSlice holds the services. It is one that no shutdown stops before the end: a
	// slice made at run time is stopped among the first, whatever its properties say, and
	// what is in it with it.
	pluginSlice = "system.slice"
	// serviceWithin bounds the start of a service. Only its process is started.
	serviceWithin = 15 * time.Second
	// wordsWithin bounds the question how a process of systemd's ended.
	wordsWithin = 2 * time.Second
)

// ownStatus is the first of the exit statuses that systemd itself gives to what
// it cannot execute (systemd.exec(5)).
const ownStatus = 200

// errNoService says that there is no service, so that a fork is no second start.
var errNoService = errors.New("systemd does not run it as a service")

// serviceName is the unit's name of one incarnation of a part of a plugin.
func serviceName(slot, nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return groupPrefix + shown(slot) + "-" + hex.EncodeToString(sum[:6]) + ".service"
}

// shown is a slot as far as a unit's name may have it, of at most 255 bytes.
func shown(slot string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(":._-", c) {
			return c
		}
		return '_'
	}, slot[:min(len(slot), 100)])
}

// launch starts the process and returns its pid. served reports that it is, or
// was, in a service of its own.
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

// fork starts the process as a child of the agent's, in a cgroup of its own if
// that can be had.
func (r *execRunner) fork(cmd *exec.Cmd, nonce string) (pid int, err error) {
	plain := exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr, SysProcAttr: cmd.SysProcAttr}
	if group, err := r.group(nonce); err == nil {
		defer group.Close() //nolint:errcheck // a directory, of which nothing was read
		attr := *cmd.SysProcAttr
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
		cmd.SysProcAttr = &attr
	}
	err = cmd.Start()
	if err != nil && cmd.SysProcAttr.UseCgroupFD {
		// It may be for the cgroup's sake.
		r.dropGroup(nonce)
		cmd = &plain
		err = cmd.Start()
	}
	if err != nil {
		return 0, startError(cmd.Path, err)
	}
	// It is watched through a pidfd of our own, like one that an earlier agent
	// has started. Until it is reaped there its pid and start time stay.
	pid = cmd.Process.Pid
	if err := cmd.Process.Release(); err != nil {
		return 0, fmt.Errorf("cannot let go of process %d: %w", pid, err)
	}
	return pid, nil
}

// serve starts the process as a service. The error wraps errNoService if it is
// certain that there is none; else there may be one, which Find finds.
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
		// A start that comes too late finds nothing to run.
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

// reach connects to systemd: who cannot has asked it for nothing, so there is no service.
func reach(ctx context.Context, bus *systemd.Bus) error {
	if _, err := bus.Connect(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNoService, err)
	}
	return nil
}

// letGo has systemd forget a service that has ended.
func (r *execRunner) letGo(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), wordsWithin)
	defer cancel()
	if err := r.p.s.opts.Systemd.Unref(ctx, name); err != nil {
		r.p.log.Debug("cannot let go of a service", "unit", name, "error", err)
	}
}

// oomScore is what the agent itself has: plugins are as dear as it is.
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

// hardLimit is the agent's own limit of something, to which a plugin may raise its
// own; 0 if it cannot be told.
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

// findService finds the process of a service that an agent was about to start
// when it died; 0 if there is none. One without a process yet is waited for.
func (r *execRunner) findService(ctx context.Context, nonce string) (pid int, err error) {
	bus := r.p.s.opts.Systemd
	if bus == nil || len(r.p.s.opts.ServiceArgv) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()
	if _, err := bus.Connect(ctx); err != nil {
		return 0, nil // where systemd does not answer, a service was not made either
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

// keep has systemd remember what becomes of the service that a process is in.
// It reports whether it is in one.
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

// served says how a process in a service ended.
func (r *execRunner) served(nonce string) func(pid int) string {
	return func(pid int) string {
		name := serviceName(r.p.slot, nonce)
		s := awaitEnd(r.p.s.opts.Systemd, name, pid)
		r.letGo(name)
		return ending(s)
	}
}

// awaitEnd asks about a service until systemd, too, has noticed the end of its
// process. The zero value is of one that nothing is known of.
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

// ending puts into words how the main process of a service ended.
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
