package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// notify tells systemd how the service is (sd_notify(3)). Without systemd it
// does nothing.
func notify(log hclog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "error", err)
	}
}

// reloading is RELOADING=1 with the time that Type=notify-reload asks for.
func reloading() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, ts.Nano()/1000)
}

// watchdog says that the agent is alive for as long as alive answers, twice
// within each interval that systemd asks for.
func watchdog(ctx context.Context, log hclog.Logger, alive func() bool) {
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
				notify(log, daemon.SdNotifyWatchdog)
			}
		case <-ctx.Done():
			return
		}
	}
}
