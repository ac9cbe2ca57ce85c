package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
)

const (
	// firstPoll is the first pause between two checks whether a plugin that was just started is
	// ready.
	firstPoll = 5 * time.Millisecond
	// slowestPoll is the longest pause between two checks whether a plugin that this agent runs has
	// opened its socket.
	slowestPoll = 100 * time.Millisecond
	// slowestProbe is the longest pause between two probes of a plugin that is not ready yet.
	slowestProbe = time.Second
	// unhealthyProbe is the longest pause between two probes of a plugin that was ready and then
	// failed a probe.
	unhealthyProbe = 5 * time.Second
	// lostLook is the pause before the next probe of a plugin whose connection was lost.
	lostLook = 500 * time.Millisecond
	// maxFailures is the number of consecutive failed probes after which a plugin counts as hung.
	maxFailures = 3
)

// session is the connection of the agent to one instance. It waits until the instance is ready, and
// then monitors it.
type session struct {
	*checker
	inst   runner.Instance
	run    runner.Traits
	def    *plugin.Definition
	served runner.SocketFile // the socket file to which the client is connected
	// refused is the connection to an instance that was refused. It stays open if only its loss
	// shows that the instance has ended.
	refused *csiclient.Client
	untidy  bool // the agent has already warned that it cannot trim the log
}

// settle waits until the instance is ready. For this, the instance must open its socket, report
// that it is ready, identify itself, and share its mounts with the host. After that, settle returns
// a client, which the caller must close.
func (s *session) settle(ctx context.Context) (*csiclient.Client, error) {
	limit, cancel := context.WithTimeoutCause(ctx, s.def.StartTimeout, errSlow)
	defer cancel()

	last := "it has not opened its socket " + s.run.Socket + s.run.Missing
	err := s.poll(limit, firstPoll, slowestPoll, func() bool {
		_, err := os.Stat(s.run.Socket)
		return err == nil
	})

	if err != nil {
		return nil, s.unsettled(limit, err, last)
	}

	// If this fails, served stays empty, so every later socket counts as a different one.
	s.served, _ = runner.StatSocket(s.run.Socket)
	last = "it has opened its socket " + s.run.Socket + ", and does not answer"
	client, err := csiclient.Dial(s.run.Socket, s.clientOptions())
	if err != nil {
		return nil, err
	}

	var info plugin.Info
	err = s.poll(limit, firstPoll, slowestProbe, func() bool {
		ready, err := client.Probe(limit)
		if err == nil && ready {
			info, err = client.Info(limit)
		}

		switch {
		// After the timeout, keep the reason of an earlier attempt, which says more than the
		// timeout.
		case err != nil && limit.Err() != nil:
		case err != nil:
			last = err.Error()
		case !ready:
			last = "it says that it is not ready yet"
		default:
			return true
		}

		s.m.Note("not ready yet: " + last)
		return false
	})

	if err == nil {
		err = s.introduce(ctx, s.def, info)
		if err == nil {
			err = s.share(ctx, s.inst, s.run)
		}
	} else {
		err = s.unsettled(limit, err, last)
	}

	if err != nil && errors.Is(err, runner.ErrRefused) && s.inst.Done() == nil {
		// keep the connection, because its loss shows that the instance has ended
		s.refused = client
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}

	return client, nil
}

// errSlow is the cancellation cause of a context when the start timeout has passed.
var errSlow = errors.New("start timeout")

// unsettled returns the error that explains why a plugin did not become ready.
func (s *session) unsettled(limit context.Context, err error, last string) error {
	if errors.Is(context.Cause(limit), errSlow) && !errors.Is(err, errExited) && !errors.Is(err, runner.ErrDue) {
		return fmt.Errorf("not ready after %s: %s", s.def.StartTimeout, last)
	}
	return err
}

// poll calls ok with growing pauses in between. It returns when ok returns true, when the instance
// ends, when due returns true, or when ctx ends.
func (s *session) poll(ctx context.Context, first, slowest time.Duration, ok func() bool) error {
	for pause := first; !ok(); pause = min(2*pause, slowest) {
		if s.inst.Stale() {
			return errors.New("its socket was replaced or removed")
		}

		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-s.inst.Done():
			timer.Stop()
			return errExited
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-s.wake:
			timer.Stop()
			if s.due() {
				return runner.ErrDue
			}
		}
	}

	return nil
}

// clientOptions returns the options of the client that makes the calls to the plugin.
func (s *session) clientOptions() csiclient.Options {
	o := s.opts.Client
	o.NodeTimeout, o.ControllerTimeout, o.ProbeTimeout = s.def.NodeTimeout, s.def.ControllerTimeout, s.def.ProbeTimeout
	o.MaxInFlight = s.def.MaxInFlight
	o.Scrubber = &s.mask.Scrubber
	o.Exhausted = func() { askLimits(s.siblings.of(s.id)) }
	s.mask.Unmask(s.def.UnmaskedSecrets...)
	if s.opts.Observe != nil {
		o.Observer = s.opts.Observe(s.id)
	}

	switch s.def.Type {
	case part.Node:
		o.Services = csiclient.NodeOnly
	case part.Controller:
		o.Services = csiclient.ControllerOnly
	default:
		o.Services = csiclient.AllServices
	}

	return o
}

// watch probes a plugin that is ready. It returns when the plugin ends, hangs or is replaced, or
// when due returns true.
func (s *session) watch(ctx context.Context, client *csiclient.Client) error {
	lost, stop := watchConnection(ctx, client)
	defer stop()

	ended := s.inst.Done()
	if ended == nil {
		ended, lost = lost, nil
	}

	failures := 0
	timer := time.NewTimer(s.def.ProbeInterval)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return s.ended()
		case <-lost:
			// Most likely the process has just ended, and the channel that reports its end will be
			// closed soon.
			lost = nil
			timer.Reset(min(s.def.ProbeInterval, lostLook))
			continue

		case <-s.wake:
			if s.due() {
				return runner.ErrDue
			}
			if s.take(&s.limits) {
				s.askNode(ctx, s.def, client)
			}

			continue

		case <-timer.C:
		}

		if s.due() {
			return runner.ErrDue
		}
		if s.inst.Stale() {
			return errors.New("its socket was replaced or removed")
		}
		if s.run.Owned && s.reopened() {
			return errReopened
		}
		if err := s.probe(ctx, client, &failures); err != nil {
			return err
		}

		s.tidy()
		next := s.def.ProbeInterval
		if s.m.Snapshot().State != part.Ready {
			next = min(next, unhealthyProbe)
		}

		timer.Reset(next)
	}
}

// These errors describe how an instance ended. Any other error of a session describes why the
// plugin could not be started, or did not become ready in time.
var (
	errExited = errors.New("exited")
	errHung   = errors.New("hangs")
)

// errReopened means that a process of this agent has replaced its socket and serves calls on the
// new one.
var errReopened = errors.New("its process replaced its socket and kept running")

// reopened reports whether the socket file differs from the one to which the client is connected.
// The process that the agent started may be a shell or the init process of a container, and may
// have started another server. If there is no socket file, reopened returns false, because a new
// file may appear soon.
func (s *session) reopened() bool {
	now, err := runner.StatSocket(s.run.Socket)
	return err == nil && now != s.served
}

// ended returns an error that describes how the instance ended.
func (s *session) ended() error {
	if s.run.Owned {
		return errExited
	}
	return errors.New(s.inst.Exit())
}

// probe probes the plugin once. If the plugin reports that it is not ready, it becomes unhealthy
// but does not count as hung: a restart would not help and could break mounts.
func (s *session) probe(ctx context.Context, client *csiclient.Client, failures *int) error {
	ready, err := client.Probe(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		*failures++
		s.must(s.m.Unhealthy(fmt.Sprintf("probe %d of %d failed: %s", *failures, maxFailures, err)))
		if *failures >= maxFailures {
			return fmt.Errorf("%w: %d probes in a row failed, the last with %w", errHung, *failures, err)
		}

		return nil
	}

	*failures = 0
	if !ready {
		s.must(s.m.Unhealthy("it says that it is not ready"))
	} else if s.m.Snapshot().State == part.Unhealthy {
		s.must(s.m.Ready())
	}

	return nil
}

// tidy limits the size of a running plugin's log.
func (s *session) tidy() {
	if !s.run.Owned {
		return
	}

	err := pluginlog.Trim(s.paths.Log)
	if err != nil && !s.untidy {
		s.logger.Warn("cannot trim the plugin's log", "error", err)
	}

	s.untidy = err != nil
}

// watchConnection returns a channel that is closed when the client's connection is lost.
func watchConnection(ctx context.Context, client *csiclient.Client) (lost <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ch, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		if client.WaitLost(ctx) == nil {
			close(ch)
		}
	}()

	return ch, func() { cancel(); <-over }
}

// closeRefused closes the connection to a refused instance, if it is still open.
func (s *session) closeRefused() {
	if s.refused == nil {
		return
	}
	if err := s.refused.Close(); err != nil {
		s.logger.Warn("cannot close the connection to a refused plugin", "error", err)
	}

	s.refused = nil
}
