package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
)

// second is the pause between two checks of a command. Normally systemd signals the end earlier.
const second = time.Second

// Outside runs a command that must not be restricted like the agent: a command of a container
// runtime, as container.Via. Under systemd the command runs as its own service, beside those of the
// plugins. The processes that podman starts are the command's children. In the agent's service they
// would inherit every restriction of it. The command becomes the agent's child only if systemd
// certainly runs nothing.
func (s *Supervisor) Outside(ctx context.Context, cmd *exec.Cmd) error {
	if len(s.opts.ServiceArgv) == 0 {
		return cmd.Run()
	}

	err := s.runService(ctx, cmd)
	if !errors.Is(err, errNoService) {
		return err
	}

	s.log.Warn("a command runs in the agent's own service: what it starts is restricted as that is", "command", cmd.Path, "error", err)
	return cmd.Run()
}

// runService runs a command as a service and waits for its end. The error wraps errNoService if
// certainly nothing ran.
func (s *Supervisor) runService(ctx context.Context, cmd *exec.Cmd) error {
	starting, cancel := context.WithTimeout(ctx, serviceWithin)
	defer cancel()

	bus := s.opts.Systemd
	if err := reach(starting, bus); err != nil {
		return err
	}

	var nonce [6]byte
	rand.Read(nonce[:]) // never fails
	name := "volagent-run-" + hex.EncodeToString(nonce[:]) + ".service"
	mem, err := launchOf(cmd).pack()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoService, err)
	}
	defer mem.Close() //nolint:errcheck // it is in memory

	heard, err := listen(cmd)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoService, err)
	}
	defer heard.close(0)

	result, err := bus.StartTransient(starting, systemd.Transient{
		Name: name, Description: "A command, run by volagent", Slice: pluginSlice,
		Argv: s.opts.ServiceArgv, Stdin: mem, Output: heard.out, Errors: heard.errs,
		OOMScore: oomScore(), NoFile: hardLimit(unix.RLIMIT_NOFILE), Core: hardLimit(unix.RLIMIT_CORE),
		Command: true,
	})

	if err != nil {
		if systemd.IsAnswer(err) {
			return fmt.Errorf("%w: %w", errNoService, err)
		}

		return errors.Join(err, mem.Truncate(0)) // a late start finds nothing to run
	}

	end := s.awaitCommand(ctx, name, cmd.WaitDelay)
	s.unref(name)
	heard.close(cmd.WaitDelay)
	switch {
	case result != systemd.JobDone && (end.ExecCode == 0 || end.ExecStatus >= ownStatus):
		return fmt.Errorf("%w: systemd cannot start it: %s, %s", errNoService, result, ending(end))
	case end.ExecCode == 1 && end.ExecStatus == 0:
		return nil
	default:
		return errors.New(ending(end))
	}
}

// awaitCommand waits for the end of a service's main process. When ctx ends, it ends the process.
// It returns the zero value if nothing is known about the end.
func (s *Supervisor) awaitCommand(ctx context.Context, name string, patience time.Duration) systemd.Service {
	changed := s.opts.Systemd.Watch(name)
	defer changed.Close()

	signals := []unix.Signal{unix.SIGTERM, unix.SIGKILL}
	late := ctx.Done()
	var next <-chan time.Time
	for {
		// Bounded by itself; it must not end with ctx.
		now, err := s.opts.Systemd.Service(context.WithoutCancel(ctx), name, false)
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

// signalService signals a process if it is in the service, and no other process.
func signalService(pid int, name string, sig unix.Signal) {
	if pid <= 0 {
		return
	}

	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is written to a pidfd

	if inService(pid, name) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0) // fails only if it has ended
	}
}

// unref makes systemd forget a service that has ended.
func (s *Supervisor) unref(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), wordsWithin)
	defer cancel()
	if err := s.opts.Systemd.Unref(ctx, name); err != nil {
		s.log.Debug("cannot let go of a service", "unit", name, "error", err)
	}
}

// heard holds the pipes that carry a service's output to a command's writers.
type heard struct {
	out, errs *os.File // the write ends
	from      []*os.File
	done      chan struct{}
	readers   int
}

// listen makes the pipes; only one if both outputs have the same writer.
func listen(cmd *exec.Cmd) (*heard, error) {
	h := &heard{done: make(chan struct{}, 2)}
	var err error
	if h.out, err = h.pipe(cmd.Stdout); err != nil {
		return nil, err
	}
	if cmd.Stderr == cmd.Stdout {
		return h, nil
	}
	if h.errs, err = h.pipe(cmd.Stderr); err != nil {
		h.close(0)
		return nil, err
	}

	return h, nil
}

func (h *heard) pipe(w io.Writer) (*os.File, error) {
	r, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for a command's words: %w", err)
	}

	h.from, h.readers = append(h.from, r), h.readers+1
	go func() {
		_, _ = io.Copy(w, r) // until the end, or until r is closed
		r.Close()            //nolint:errcheck // it was only read
		h.done <- struct{}{}
	}()

	return to, nil
}

// close reads the pipes to their end. A child that keeps running may keep them open, so close waits
// for patience at most. Afterwards nothing is written to the writers any more.
func (h *heard) close(patience time.Duration) {
	for _, f := range []*os.File{h.out, h.errs} {
		if f != nil {
			f.Close() //nolint:errcheck // nothing was written through it
		}
	}

	h.out, h.errs = nil, nil
	timeout := time.After(patience)
	for h.readers > 0 {
		select {
		case <-h.done:
			h.readers--
		case <-timeout:
			for _, r := range h.from {
				r.Close() //nolint:errcheck // its reader ends
			}
			timeout = nil
		}
	}
}
