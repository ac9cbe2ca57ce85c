// Package process contains the tasks that the agent has as a process of the host. It notifies
// systemd, limits the agent's memory, and writes the reason why the agent did not start to a file.
// It also stops the agent when the host shuts down.
package process

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Notify sends the state of the service to systemd (sd_Notify(3)). Without systemd it does nothing.
func Notify(log hclog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "error", err)
	}
}

// Reloading returns the message RELOADING=1 with the timestamp that Type=notify-reload requires.
func Reloading() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, ts.Nano()/1000)
}

// Watchdog tells systemd that the agent is alive, as long as alive returns true. It sends two
// messages in each watchdog interval that systemd has set.
func Watchdog(ctx context.Context, log hclog.Logger, alive func() bool) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return
	}

	t := time.NewTicker(every / 2)
	defer t.Stop()

	for {
		select {
		case <-t.C:
			if alive() {
				Notify(log, daemon.SdNotifyWatchdog)
			}
		case <-ctx.Done():
			return
		}
	}
}
