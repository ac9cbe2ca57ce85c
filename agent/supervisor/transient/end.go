package transient

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
)

const (
	// rescan is the pause between two queries, in case a signal from systemd is lost.
	rescan = 50 * time.Millisecond
	// wordsWithin limits the duration of a query to systemd for how a process ended.
	wordsWithin = 2 * time.Second
)

// AwaitEnd queries a service until systemd has also noticed the end of its process. It returns the
// zero value if it cannot learn how the process ended.
func AwaitEnd(bus *systemd.Bus, name string, pid int) systemd.Service {
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

// Ending describes how the main process of a service ended.
func Ending(s systemd.Service) string {
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
		return "ended with an unknown status"
	}

	switch s.Result {
	case "", "success", "exit-code", "signal", "core-dump":
		return words
	default: // oom-kill, watchdog, timeout …
		return words + " (" + s.Result + ")"
	}
}

// Unref makes systemd forget a unit that has ended.
func Unref(bus *systemd.Bus, name string, log hclog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), wordsWithin)
	defer cancel()
	if err := bus.Unref(ctx, name); err != nil {
		log.Debug("cannot release a unit", "unit", name, "error", err)
	}
}
