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
	// rescan is the pause between two queries about a service, because a signal from systemd may be
	// lost.
	rescan = 50 * time.Millisecond
	// wordsWithin is the time limit for asking systemd how a process ended.
	wordsWithin = 2 * time.Second
)

// AwaitEnd asks systemd about a service until systemd has also noticed the end of its process. It
// returns the zero value if it cannot find out how the process ended.
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
	const exited, killed, dumped = 1, 2, 3 // the CLD_ codes of waitid(2)
	const notExecuted = 203                // EXIT_EXEC in systemd.exec(5)
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
	default: // such as oom-kill, watchdog or timeout
		return words + " (" + s.Result + ")"
	}
}

// Unref lets systemd unload a unit that has ended.
func Unref(bus *systemd.Bus, name string, log hclog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), wordsWithin)
	defer cancel()
	if err := bus.Unref(ctx, name); err != nil {
		log.Debug("cannot release a unit", "unit", name, "error", err)
	}
}
