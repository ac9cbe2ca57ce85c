// Package unit runs plugins as systemd units that an operator has written.
package unit

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/agent/supervisor/transient"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/suggest"
)

// askAgain is the interval at which the agent asks systemd about a unit for which it waits, because
// a signal from systemd may be lost.
const askAgain = 2 * time.Second

// Runner runs a plugin as a systemd unit. If the settings of the unit make systemd restart it, the
// agent leaves the restarts to systemd. The agent starts the unit if systemd does not.
type Runner struct {
	name     string
	paths    part.Paths
	progress runner.Progress
	log      hclog.Logger
	bus      *systemd.Bus // nil if the host has no systemd
	journal  pluginlog.Log
}

// New returns the runner of a part whose definition names a unit. The argument bus is nil if the
// host has no systemd.
func New(p runner.Part, bus *systemd.Bus) *Runner {
	r := &Runner{name: p.Definition.Unit, paths: p.Paths, progress: p.Progress, log: p.Logger, bus: bus}
	if bus != nil {
		r.journal = pluginlog.NewJournal(r.name)
	}
	return r
}

// Traits implements runner.Runner. Ends is false: when the host shuts down, systemd stops the units
// in its own order. It would delay a stop that the agent requests until the agent itself has ended.
func (r *Runner) Traits() runner.Traits {
	return runner.Traits{
		Owned: true, Socket: r.paths.Socket, Log: r.journal,
		// Only the unit's file can set the environment of the plugin; the agent cannot.
		Missing: fmt.Sprintf("; its file needs the line Environment=%s=unix://%s", pluginfile.VarEndpoint, r.paths.Socket),
		Fix: runner.Fix{
			Mounts: func(string, bool) string {
				return "take out of " + r.name + " what gives it a mount namespace of its own: PrivateMounts=, PrivateTmp=, PrivateDevices=, ProtectSystem=, " +
					"ProtectHome=, ProtectKernel…=, ReadOnlyPaths= and the like, DynamicUser=, RootDirectory="
			},
			Root:    "take User= and DynamicUser= out of " + r.name,
			Network: "take PrivateNetwork= and NetworkNamespacePath= out of " + r.name,
		},
	}
}

// Sweep implements runner.Runner. It does nothing, because Quiet does the work.
func (r *Runner) Sweep(context.Context) (runner.Instance, error) { return nil, nil }

// Quiet implements runner.Runner. If a unit has no running process but systemd is about to start it
// again, Quiet stops the unit.
func (r *Runner) Quiet(ctx context.Context) {
	if r.bus == nil {
		return
	}

	s, err := r.bus.Service(ctx, r.name, false)
	if err == nil && !s.Down() {
		err = r.bus.Stop(ctx, r.name)
	}

	if err != nil && !errors.Is(err, systemd.ErrNone) {
		r.log.Warn("cannot stop the plugin's unit", "unit", r.name, "error", err)
	}
}

// Find implements runner.Runner.
func (r *Runner) Find(ctx context.Context) (runner.Instance, error) {
	if r.bus == nil {
		return nil, nil // Start returns the error about the missing systemd
	}
	// Make the directories first, because a unit that was started at boot may be waiting for them.
	if err := r.paths.Make(); err != nil {
		return nil, err
	}

	s, err := r.bus.Service(ctx, r.name, true)
	switch {
	case errors.Is(err, systemd.ErrNone):
		return nil, nil
	case err != nil || !running(s.Unit) || s.MainPID == 0:
		return nil, err
	default:
		return r.attach(ctx, s)
	}
}

// running reports whether a unit is active, and is neither starting nor stopping.
func running(u systemd.Unit) bool {
	return !u.Down() && u.Active != "activating" && u.Active != "deactivating"
}

// attach monitors the main process of a running unit. It returns nil if the process has already
// ended.
func (r *Runner) attach(ctx context.Context, s systemd.Service) (runner.Instance, error) {
	st, err := proc.ReadStat(s.MainPID)
	if err != nil || !st.Alive() {
		return nil, nil //nolint:nilerr // no such process is an answer
	}

	u := &instance{bus: r.bus, log: r.log, name: r.name, unit: s.ID, invocation: s.Invocation}
	if _, err := r.bus.Ref(ctx, u.unit); err != nil {
		r.log.Debug("cannot have systemd remember how the plugin ends", "error", err)
	}

	if u.Process, err = runner.OpenProcess(s.MainPID, st.Start, u.how); err != nil || u.Process == nil {
		transient.Unref(r.bus, u.unit, r.log)
		return nil, err
	}

	// Ask again after the pidfd was opened, to make sure that the process still belongs to the
	// unit.
	now, err := r.bus.Service(ctx, r.name, false)
	if err != nil || now.MainPID != s.MainPID || now.Invocation != s.Invocation {
		return nil, errors.Join(err, u.Release())
	}

	return u, nil
}

// Start implements runner.Runner. It waits until the unit runs, and starts the unit if systemd does
// not.
func (r *Runner) Start(ctx context.Context) (runner.Instance, error) {
	if r.bus == nil {
		return nil, r.noSystemd(systemd.ErrNone)
	}
	if err := r.paths.Make(); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	changed := r.bus.Watch(r.name)
	defer changed.Close()

	var job *startJob
	for {
		s, err := r.bus.Service(ctx, r.name, true)
		switch {
		case errors.Is(err, systemd.ErrNone):
			return nil, r.noSystemd(err)
		case err != nil:
			return nil, err
		case !running(s.Unit) && s.Load != "loaded":
			return nil, r.unusable(s)
		case running(s.Unit) && s.MainPID == 0:
			return nil, r.noMain(s)
		case running(s.Unit):
			if inst, err := r.attach(ctx, s); inst != nil || err != nil {
				return inst, err
			}

		case s.Restarting():
			r.progress.Note(fmt.Sprintf("systemd is restarting %s (auto-restart), for the %s time", r.name, ordinal(s.Restarts+1)))
		case s.Down() && job == nil:
			if err := r.clearSocket(ctx); err != nil {
				return nil, err
			}

			r.progress.Note("systemd is starting " + r.name)
			job = r.demand(ctx, s.Invocation)

		case s.Down() && job.over():
			return nil, r.notStarted(s, job)
		default:
			r.progress.Note(fmt.Sprintf("%s is %s (%s)", r.name, s.Active, s.Sub))
		}

		if err := r.await(ctx, changed, job); err != nil {
			return nil, err
		}
	}
}

// startJob is a job of systemd that starts the unit, because the agent requested it.
type startJob struct {
	before string // the unit's invocation before the job
	ended  chan struct{}
	result string
	err    error
}

// demand requests that systemd starts the unit.
func (r *Runner) demand(ctx context.Context, before string) *startJob {
	j := &startJob{before: before, ended: make(chan struct{})}
	go func() {
		defer close(j.ended)
		j.result, j.err = r.bus.Start(ctx, r.name)
	}()
	return j
}

func (j *startJob) over() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// await waits until the state of the unit may have changed. It returns ctx.Err() if ctx ends, and
// runner.ErrDue if the start must be interrupted.
func (r *Runner) await(ctx context.Context, changed *systemd.Watch, job *startJob) error {
	var ended <-chan struct{}
	if job != nil && !job.over() {
		ended = job.ended
	}

	return runner.Wait(ctx, r.progress, askAgain, changed.C, ended)
}

// clearSocket makes the socket path free for a new socket. It does nothing while a process of the
// unit runs.
func (r *Runner) clearSocket(ctx context.Context) error {
	switch who, err := runner.Connect(ctx, r.paths.Socket); {
	case err == nil:
		return fmt.Errorf("cannot start %s: another process (pid %d) answers on its socket %s", r.name, who.PID, r.paths.Socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return runner.UnlinkSocket(r.paths.Socket)
	default:
		return nil // there is no socket, or the plugin itself reports the problem
	}
}

// Each of these functions returns an error that describes a problem of a unit and its fix.

func (r *Runner) noSystemd(err error) error {
	return fmt.Errorf("%w: cannot run unit %s: %w; use exec, container or socket", runner.ErrRefused, r.name, err)
}

func (r *Runner) unusable(s systemd.Service) error {
	switch s.Load {
	case "not-found":
		return fmt.Errorf("systemd has no unit %s; install its file, then: %s", r.name, suggest.Command("systemctl daemon-reload"))
	case "masked":
		return fmt.Errorf("unit %s is masked; to allow it: %s", r.name, suggest.Command("systemctl unmask %s", r.name))
	default:
		return fmt.Errorf("unit %s cannot be loaded (%s); to see why: %s", r.name, s.Load, suggest.Command("systemctl status %s", r.name))
	}
}

func (r *Runner) noMain(s systemd.Service) error {
	return fmt.Errorf("unit %s (Type=%s) has no main process that could be watched; give it Type=exec or notify, and a command that stays in the foreground", r.name, s.Type)
}

func (r *Runner) notStarted(s systemd.Service, j *startJob) error {
	why := suggest.Command("systemctl status %s", r.name)
	switch {
	case j.err != nil:
		return j.err
	// If the invocation has not changed, systemd did not start the unit. In this case, the unit
	// still has the result of an earlier failure.
	case s.Result == "start-limit-hit", s.Active == "failed" && j.result == "failed" && j.before != "" && s.Invocation == j.before:
		return fmt.Errorf("systemd does not start unit %s, because it started too often (start-limit-hit); to start it: %s", r.name, suggest.Command("systemctl reset-failed %s", r.name))
	case s.Type == "oneshot" && s.Result == "success" && j.result == systemd.JobDone:
		return r.noMain(s)
	case s.ExecCode != 0:
		return fmt.Errorf("unit %s did not stay up: its process %s; to see why: %s", r.name, transient.Ending(s), why)
	default:
		return fmt.Errorf("systemd did not start unit %s (job %s, result %s); to see why: %s", r.name, j.result, s.Result, why)
	}
}
