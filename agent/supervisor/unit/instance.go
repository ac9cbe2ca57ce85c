package unit

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/agent/supervisor/transient"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/suggest"
)

// instance is one invocation of a unit, with its main process.
type instance struct {
	*runner.Process
	bus        *systemd.Bus
	log        hclog.Logger
	name       string // the name of the unit in the plugin's file
	unit       string // the primary name of the unit, which may differ
	invocation string
	again      bool // whether systemd itself restarts the unit; valid after Done is closed
}

// Key implements runner.Instance.
func (u *instance) Key() string { return u.invocation + "/" + u.Process.Key() }

// how returns a description of how the main process ended.
func (u *instance) how(pid int) string {
	s := transient.AwaitEnd(u.bus, u.unit, pid)
	u.again = s.Restarting() || s.ExecPID != 0 && s.ExecPID != pid
	switch {
	// The agent asked too late: systemd has restarted the unit, and knows only how the latest
	// process ended.
	case s.ExecPID != pid && u.again && s.Restarts > 0:
		return fmt.Sprintf("ended; systemd restarted %s, for the %s time, before the agent could read how it ended (to see that: %s)", u.name, ordinal(s.Restarts), suggest.Command("journalctl -u %s", u.name))
	case s.ExecPID != pid:
		return "ended with an unknown status"
	}

	words := transient.Ending(s)
	if u.again {
		words += fmt.Sprintf("; systemd is restarting %s, for the %s time", u.name, ordinal(s.Restarts+1))
	}

	return words
}

// Restarts implements runner.Instance.
func (u *instance) Restarts() bool { return u.again }

// Stop implements runner.Instance. systemd stops the unit within the unit's own timeout. After such
// a stop, systemd does not restart the unit.
func (u *instance) Stop(ctx context.Context, _ time.Duration) error {
	if err := u.bus.Stop(ctx, u.unit); err != nil {
		return err
	}
	select {
	case <-u.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release implements runner.Instance. The unit continues without being monitored.
func (u *instance) Release() error {
	transient.Unref(u.bus, u.unit, u.log)
	return u.Process.Release()
}

// ordinal returns "1st", "2nd" and so on.
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
