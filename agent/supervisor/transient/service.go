// Package transient runs processes as transient services of systemd, beside the agent's own
// service. So if the agent's service is stopped, killed or upgraded, the processes keep running.
// The caller chooses a unique name for each service. An agent can therefore find a service even if
// it does not know the pid yet.
package transient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/proc"
)

const (
	// pluginSlice is the slice that contains the services. During a shutdown, systemd stops this
	// slice last. A slice that was made at run time would be among the first units to be stopped,
	// with all its services, regardless of its properties.
	pluginSlice = "system.slice"
	// serviceWithin is the time limit for the start of a service. It is longer than a start needs,
	// because systemd only executes the command.
	serviceWithin = 15 * time.Second
)

// ownStatus is the first of the exit statuses that systemd uses when it cannot execute a command
// (systemd.exec(5)).
const ownStatus = 200

// ErrNoService means that the service certainly does not exist. Only after this error may the
// caller fork the process, because otherwise the process could run twice.
var ErrNoService = errors.New("systemd does not run it as a service")

// Services starts services and monitors them.
type Services struct {
	bus  *systemd.Bus
	argv []string
	log  hclog.Logger
}

// New returns a Services that uses bus. The argument argv is the command line that runs Launch. If
// argv is empty, no process runs as a service.
func New(bus *systemd.Bus, argv []string, log hclog.Logger) *Services {
	return &Services{bus: bus, argv: argv, log: log}
}

// Enabled reports whether processes run as services of systemd.
func (s *Services) Enabled() bool { return len(s.argv) > 0 }

// Start starts a command as a service and returns its pid. If the error wraps ErrNoService, the
// service certainly does not exist. After any other error, the service may exist; Find can then
// find it.
func (s *Services) Start(ctx context.Context, name, description string, cmd *exec.Cmd) (pid int, err error) {
	ctx, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()

	if err := s.reach(ctx); err != nil {
		return 0, err
	}

	log, ok := cmd.Stdout.(*os.File)
	if !ok {
		return 0, fmt.Errorf("%w: its output is not a file", ErrNoService)
	}

	result, err := s.start(ctx, cmd, systemd.Transient{Name: name, Description: description, Output: log})
	if err != nil {
		return 0, err
	}

	now, err := s.bus.Service(ctx, name, false)
	switch {
	case err != nil:
		return 0, err
	case result != systemd.JobDone && now.MainPID == 0 && failed(now):
		s.Unref(name)
		return 0, noService(result, now)
	case now.MainPID == 0:
		return now.ExecPID, nil // the process has already ended
	default:
		return now.MainPID, nil
	}
}

// start passes a command to a new service. It returns the result of the start that systemd reports.
func (s *Services) start(ctx context.Context, cmd *exec.Cmd, t systemd.Transient) (result string, err error) {
	mem, err := launchOf(cmd).pack()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoService, err)
	}
	defer mem.Close() //nolint:errcheck // the file is in memory

	t.Slice, t.Argv, t.Stdin = pluginSlice, s.argv, mem
	t.OOMScore, t.NoFile, t.Core = oomScore(), hardLimit(unix.RLIMIT_NOFILE), hardLimit(unix.RLIMIT_CORE)
	result, err = s.bus.StartTransient(ctx, t)
	switch {
	case err == nil:
		return result, nil
	case systemd.IsAnswer(err):
		return "", fmt.Errorf("%w: %w", ErrNoService, err)
	default:
		// Empty the memory file, so that a service that starts later finds no command to run.
		return "", errors.Join(err, mem.Truncate(0))
	}
}

// failed reports whether systemd did not execute the command of a service.
func failed(s systemd.Service) bool { return s.ExecCode == 0 || s.ExecStatus >= ownStatus }

// noService returns the error for a service that systemd could not start.
func noService(result string, s systemd.Service) error {
	return fmt.Errorf("%w: systemd cannot start it: %s, %s", ErrNoService, result, Ending(s))
}

// reach connects to systemd. If it returns an error, systemd has received no request, so no service
// exists.
func (s *Services) reach(ctx context.Context) error {
	if _, err := s.bus.Connect(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNoService, err)
	}
	return nil
}

// oomScore returns the agent's own OOM score, which plugins also get, because they are as important
// as the agent.
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

// hardLimit returns the agent's own hard limit of a resource, up to which a plugin may raise its
// limit. The result is 0 if the limit is unknown.
func hardLimit(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return 0
	}
	return limit.Max
}

// InService reports whether a process is in the cgroup of a service.
func InService(pid int, name string) bool {
	groups, err := proc.Cgroups(pid)
	return err == nil && slices.ContainsFunc(groups, func(g proc.Cgroup) bool { return path.Base(g.Path) == name })
}

// Find returns the pid of a service that an earlier agent may have started before it died. It
// returns 0 if the service does not exist. If the service has no process yet, Find waits for the
// process.
func (s *Services) Find(ctx context.Context, name string) (pid int, err error) {
	if s.bus == nil || !s.Enabled() {
		return 0, nil
	}

	ctx, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()

	if _, err := s.bus.Connect(ctx); err != nil {
		return 0, nil // if systemd does not answer, the agent cannot find a service
	}

	changed := s.bus.Watch(name)
	defer changed.Close()

	for {
		now, err := s.bus.Service(ctx, name, false)
		switch {
		case err != nil:
			return 0, err
		case now.MainPID != 0:
			return now.MainPID, nil
		case now.Down() && !now.Queued:
			return 0, nil
		}

		select {
		case <-changed.C:
		case <-time.After(rescan):
		case <-ctx.Done():
			return 0, fmt.Errorf("cannot tell whether the plugin was started: systemd has not finished the start: %w", ctx.Err())
		}
	}
}

// Keep makes systemd keep the result of a service after its process has ended. It returns true if
// the process is in the service and systemd will keep the result.
func (s *Services) Keep(ctx context.Context, pid int, name string) bool {
	if s.bus == nil || !InService(pid, name) {
		return false
	}

	kept, err := s.bus.Ref(ctx, name)
	if err != nil {
		s.log.Debug("cannot have systemd remember how the plugin ends", "error", err)
	}

	return kept
}

// End describes how the process of a service ended. It then lets systemd unload the service.
func (s *Services) End(name string, pid int) string {
	now := AwaitEnd(s.bus, name, pid)
	s.Unref(name)
	return Ending(now)
}

// Unref lets systemd unload a service that has ended.
func (s *Services) Unref(name string) { Unref(s.bus, name, s.log) }
