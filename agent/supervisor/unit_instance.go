package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/suggest"
)

// unitInstance is one invocation of a unit, with one main process.
type unitInstance struct {
	*process
	r          *unitRunner
	unit       string // the unit's real name, which may differ from the name in the plugin's file
	invocation string
	again      bool // systemd restarts the unit by itself; valid after done
}

// Key implements instance.
func (u *unitInstance) Key() string { return u.invocation + "/" + u.process.Key() }

// how describes how the main process ended.
func (u *unitInstance) how(pid int) string {
	s := awaitEnd(u.r.p.s.opts.Systemd, u.unit, pid)
	u.again = s.Restarting() || s.ExecPID != 0 && s.ExecPID != pid
	switch {
	case s.ExecPID != pid && u.again && s.Restarts > 0: // systemd only keeps how the latest process ended
		return fmt.Sprintf("ended; systemd restarted %s, for the %s time, before it was asked how (%s says that)", u.r.name, ordinal(s.Restarts), suggest.Command("journalctl -u %s", u.r.name))
	case s.ExecPID != pid:
		return "ended; how is unknown"
	}

	words := ending(s)
	if u.again {
		words += fmt.Sprintf("; systemd is restarting %s, for the %s time", u.r.name, ordinal(s.Restarts+1))
	}

	return words
}

// Stop implements instance. systemd stops the unit, within the unit's own timeout, and therefore
// does not restart it.
func (u *unitInstance) Stop(ctx context.Context, _ time.Duration) error {
	if err := u.r.p.s.opts.Systemd.Stop(ctx, u.unit); err != nil {
		return err
	}
	select {
	case <-u.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release implements instance. The unit keeps running, unwatched.
func (u *unitInstance) Release() error {
	u.r.p.s.unref(u.unit)
	return u.process.Release()
}

// quiet stops a unit that has no running process, but that systemd would start again.
func (w *worker) quiet(ctx context.Context) {
	def, _ := w.definition()
	if def == nil || def.Unit == "" || w.s.opts.Systemd == nil {
		return
	}

	s, err := w.s.opts.Systemd.Service(ctx, def.Unit, false)
	if err == nil && !s.Down() {
		err = w.s.opts.Systemd.Stop(ctx, def.Unit)
	}

	if err != nil && !isNone(err) {
		w.log.Warn("cannot stop the plugin's unit", "unit", def.Unit, "error", err)
	}
}

// pause returns how long a plugin that ended waits before it is started again. A plugin that
// systemd restarts does not wait, as long as it becomes ready in between.
func (w *worker) pause(readyFor time.Duration) time.Duration {
	pause := w.falls.fell(readyFor)
	u, ok := w.inst.(*unitInstance)
	if !ok || readyFor == 0 || w.falls.failures > 0 {
		return pause
	}

	select {
	case <-u.done:
		if u.again {
			return 0
		}
	default:
	}

	return pause
}

func isNone(err error) bool { return errors.Is(err, systemd.ErrNone) }
