package transient

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
)

// second is the pause between two checks of a command's service, because a signal from systemd may
// be lost.
const second = time.Second

// Run runs a command of a container runtime without the restrictions of the agent's service. It has
// the type container.Via.
//
// Under systemd, the command runs as its own service. If it ran inside the agent's service, the
// processes that podman starts would inherit all restrictions of the agent's service. Run makes the
// command a child of the agent only if it is certain that systemd did not start the command.
func (s *Services) Run(ctx context.Context, cmd *exec.Cmd) error {
	if !s.Enabled() {
		return cmd.Run()
	}

	err := s.run(ctx, cmd)
	if !errors.Is(err, ErrNoService) {
		return err
	}

	s.log.Warn("a command runs in the agent's own service; its processes have the restrictions of that service", "command", cmd.Path, "error", err)
	return cmd.Run()
}

// run runs a command as a service and waits until the command ends. If it is certain that the
// command did not start, the error wraps ErrNoService.
func (s *Services) run(ctx context.Context, cmd *exec.Cmd) error {
	starting, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()

	if err := s.reach(starting); err != nil {
		return err
	}

	heard, err := listen(cmd)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoService, err)
	}
	defer heard.close(0)

	var nonce [6]byte
	rand.Read(nonce[:]) // rand.Read never fails
	name := "volagent-run-" + hex.EncodeToString(nonce[:]) + ".service"
	result, err := s.start(starting, cmd, systemd.Transient{
		Name: name, Description: "A command, run by volagent", Output: heard.out, Errors: heard.errs, Command: true,
	})

	if err != nil {
		return err
	}

	end := s.awaitCommand(ctx, name, cmd.WaitDelay)
	s.Unref(name)
	heard.close(cmd.WaitDelay)
	switch {
	case result != systemd.JobDone && failed(end):
		return noService(result, end)
	case end.ExecCode == 1 && end.ExecStatus == 0:
		return nil
	default:
		return errors.New(Ending(end))
	}
}

// awaitCommand waits until the main process of a service ends. When ctx ends, it ends the process.
// It returns the zero value if it does not know how the process ended.
func (s *Services) awaitCommand(ctx context.Context, name string, patience time.Duration) systemd.Service {
	changed := s.bus.Watch(name)
	defer changed.Close()

	signals := []unix.Signal{unix.SIGTERM, unix.SIGKILL}
	late := ctx.Done()
	var next <-chan time.Time
	for {
		// The query has its own time limit, and must still be possible after ctx has ended.
		now, err := s.bus.Service(context.WithoutCancel(ctx), name, false)
		if err == nil && (now.ID == "" || now.ExecCode != 0 || now.Down() && !now.Queued) {
			return now
		}

		select {
		case <-changed.C:
			continue
		case <-time.After(second):
			continue
		case <-late:
			late = nil
		case <-next:
		}

		if len(signals) == 0 {
			return systemd.Service{}
		}

		signalService(now.MainPID, name, signals[0])
		signals, next = signals[1:], time.After(patience)
	}
}

// signalService sends a signal to a process, if the process belongs to the service.
func signalService(pid int, name string, sig unix.Signal) {
	if pid <= 0 {
		return
	}

	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // the process has already ended
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is written to a pidfd

	if InService(pid, name) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0) // fails only if the process has ended
	}
}
