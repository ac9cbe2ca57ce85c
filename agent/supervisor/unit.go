package supervisor

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/suggest"
)

// askAgain is how often the agent asks about a unit that it waits for, in case a signal was lost.
const askAgain = 2 * time.Second

// unitRunner runs the plugin as a systemd unit. systemd restarts the unit if it is configured to,
// and the agent does not interfere. The agent starts a unit that systemd leaves down.
type unitRunner struct {
	p     *plugin
	name  string
	paths paths
}

// Owned implements runner.
func (r *unitRunner) Owned() bool { return true }

// Socket implements runner.
func (r *unitRunner) Socket() string { return r.paths.socket }

// Find implements runner.
func (r *unitRunner) Find(ctx context.Context) (instance, error) {
	bus := r.p.s.opts.Systemd
	if bus == nil {
		return nil, nil // Start reports this
	}
	// A unit that was started at boot may wait for the directory.
	if err := r.paths.make(); err != nil {
		return nil, err
	}

	s, err := bus.Service(ctx, r.name, true)
	switch {
	case errors.Is(err, systemd.ErrNone):
		return nil, nil
	case err != nil || !running(s.Unit) || s.MainPID == 0:
		return nil, err
	default:
		return r.attach(ctx, s)
	}
}

// running reports whether a unit is up, and neither starting nor stopping.
func running(u systemd.Unit) bool {
	return !u.Down() && u.Active != "activating" && u.Active != "deactivating"
}

// attach watches the main process of a running unit. It returns nil if that process has already
// ended.
func (r *unitRunner) attach(ctx context.Context, s systemd.Service) (instance, error) {
	st, err := proc.ReadStat(s.MainPID)
	if err != nil || !st.Alive() {
		return nil, nil //nolint:nilerr // no such process is an answer
	}

	u := &unitInstance{r: r, unit: s.ID, invocation: s.Invocation}
	if _, err := r.p.s.opts.Systemd.Ref(ctx, u.unit); err != nil {
		r.p.log.Debug("cannot have systemd remember how the plugin ends", "error", err)
	}

	if u.process, err = openProcess(s.MainPID, st.Start, u.how); err != nil || u.process == nil {
		u.r.p.s.unref(u.unit)
		return nil, err
	}

	// Asked again, now that the pidfd holds the process: it is still that of the unit.
	now, err := r.p.s.opts.Systemd.Service(ctx, r.name, false)
	if err != nil || now.MainPID != s.MainPID || now.Invocation != s.Invocation {
		return nil, errors.Join(err, u.Release())
	}

	return u, nil
}

// Start implements runner. It waits for the unit to run, and starts it if systemd leaves it down.
func (r *unitRunner) Start(ctx context.Context) (instance, error) {
	bus := r.p.s.opts.Systemd
	if bus == nil {
		return nil, r.noSystemd(systemd.ErrNone)
	}
	if err := r.paths.make(); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	changed := bus.Watch(r.name)
	defer changed.Close()

	var job *startJob
	for {
		s, err := bus.Service(ctx, r.name, true)
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
			r.p.m.note(fmt.Sprintf("systemd is restarting %s (auto-restart), for the %s time", r.name, ordinal(s.Restarts+1)))
		case s.Down() && job == nil:
			if err := r.clearSocket(ctx); err != nil {
				return nil, err
			}

			r.p.m.note("systemd is starting " + r.name)
			job = r.demand(ctx, s.Invocation)

		case s.Down() && job.over():
			return nil, r.notStarted(s, job)
		default:
			r.p.m.note(fmt.Sprintf("%s is %s (%s)", r.name, s.Active, s.Sub))
		}

		if err := r.await(ctx, changed, job); err != nil {
			return nil, err
		}
	}
}

// startJob is a start that the agent requested from systemd.
type startJob struct {
	before string // the last invocation before the job
	ended  chan struct{}
	result string
	err    error
}

// demand asks systemd to start the unit.
func (r *unitRunner) demand(ctx context.Context, before string) *startJob {
	j := &startJob{before: before, ended: make(chan struct{})}
	go func() {
		defer close(j.ended)
		j.result, j.err = r.p.s.opts.Systemd.Start(ctx, r.name)
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

// await waits until there may be news of the unit. It returns early with ctx.Err(), or with errDue.
func (r *unitRunner) await(ctx context.Context, changed *systemd.Watch, job *startJob) error {
	var ended <-chan struct{}
	if job != nil && !job.over() {
		ended = job.ended
	}

	timer := time.NewTimer(askAgain)
	defer timer.Stop()

	for {
		select {
		case <-changed.C:
			return nil
		case <-ended:
			return nil
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-r.p.wake:
			if r.p.due() {
				return errDue
			}
		}
	}
}

// clearSocket frees the path for a new socket, while no process of the unit runs.
func (r *unitRunner) clearSocket(ctx context.Context) error {
	switch who, err := connect(ctx, r.paths.socket); {
	case err == nil:
		return fmt.Errorf("cannot start %s: somebody else (pid %d) answers on its socket %s", r.name, who.pid, r.paths.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return unlinkSocket(r.paths.socket)
	default:
		return nil // nothing is there, or the plugin reports the problem itself
	}
}

// The functions below describe the problem of a unit and its fix.

func (r *unitRunner) noSystemd(err error) error {
	return fmt.Errorf("%w: cannot run unit %s: %w; use exec, container or socket", errRefused, r.name, err)
}

func (r *unitRunner) unusable(s systemd.Service) error {
	switch s.Load {
	case "not-found":
		return fmt.Errorf("systemd knows no unit %s; when its file is there: %s", r.name, suggest.Command("systemctl daemon-reload"))
	case "masked":
		return fmt.Errorf("unit %s is masked; to allow it: %s", r.name, suggest.Command("systemctl unmask %s", r.name))
	default:
		return fmt.Errorf("unit %s cannot be loaded (%s); to see why: %s", r.name, s.Load, suggest.Command("systemctl status %s", r.name))
	}
}

func (r *unitRunner) noMain(s systemd.Service) error {
	return fmt.Errorf("unit %s (Type=%s) has no main process that could be watched; give it Type=exec or notify, and a command that stays in the foreground", r.name, s.Type)
}

func (r *unitRunner) notStarted(s systemd.Service, j *startJob) error {
	why := suggest.Command("systemctl status %s", r.name)
	switch {
	case j.err != nil:
		return j.err
	// A unit that failed earlier keeps that result. Then the unchanged invocation shows that
	// systemd did not start it.
	case s.Result == "start-limit-hit", s.Active == "failed" && j.result == "failed" && j.before != "" && s.Invocation == j.before:
		return fmt.Errorf("systemd does not start unit %s, since it was started too often (start-limit-hit); to have it started: %s", r.name, suggest.Command("systemctl reset-failed %s", r.name))
	case s.Type == "oneshot" && s.Result == "success" && j.result == systemd.JobDone:
		return r.noMain(s)
	case s.ExecCode != 0:
		return fmt.Errorf("unit %s did not stay up: its process %s; to see why: %s", r.name, ending(s), why)
	default:
		return fmt.Errorf("systemd did not start unit %s (job %s, result %s); to see why: %s", r.name, j.result, s.Result, why)
	}
}

// unitNeeds says which line a unit's file needs so that the plugin opens the socket: only the file
// can set the environment of a unit.
func unitNeeds(socket string) string {
	return fmt.Sprintf("; its file needs the line Environment=%s=unix://%s", pluginfile.VarEndpoint, socket)
}

// ordinal returns 1st, 2nd and so on.
func ordinal(n int) string {
	switch {
	case n%10 == 1 && n%100 != 11:
		return fmt.Sprintf("%dst", n)
	case n%10 == 2 && n%100 != 12:
		return fmt.Sprintf("%dnd", n)
	case n%10 == 3 && n%100 != 13:
		return fmt.Sprintf("%drd", n)
	default:
		return fmt.Sprintf("%dth", n)
	}
}
