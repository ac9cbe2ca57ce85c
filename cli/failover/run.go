package failover

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

const (
	// every is the interval between two looks at the claim, the switch and the service. A host that
	// has lost the volume stops the service within this time.
	every = time.Second

	// nodeEvery is the number of looks between two questions whether the host is draining.
	nodeEvery = 3

	// retryEvery is the wait after a claim that the agent refused.
	retryEvery = 5 * time.Second

	// stopWithin limits how long failover waits for the end of the service.
	stopWithin = 10 * time.Minute
)

// otherReasons are the codes of claims that can fail for a reason outside this host. Another host holds
// the volume, the host is draining, or etcd does not answer. Such a claim does not count as a failure,
// unless this host has got the hold.
var otherReasons = []api.Code{api.CodeTimeout, api.CodeRefused, api.CodePluginUnavailable, api.CodeUnreachable}

// agent is the part of the agent's client that an attempt needs.
type agent interface {
	Node(ctx context.Context) (*api.Node, error)
	AnyVolume(ctx context.Context, id string) (*api.Volume, []string, error)
	Claim(ctx context.Context, volume, alloc string) (*api.Claim, error)
}

// attempt is one attempt of this host to run a service. It waits for the volume, runs the service, and
// ends when the host must give the volume up. systemd then starts the next attempt. The claim belongs
// to this run of the unit, so the agent detaches the volume also if the process is killed.
type attempt struct {
	service, volume string
	prefer          []string
	delay           time.Duration

	agent agent
	host  Host
	files files

	// claim claims the volume and waits until it is mounted.
	claim func(ctx context.Context) error

	// say shows the state of the attempt, and log adds a line to the journal.
	say func(state string)
	log func(format string, args ...any)

	now   func() time.Time
	sleep func(ctx context.Context, d time.Duration) error

	// draining and node are the last answer of the agent about the host, and looks counts the looks.
	draining bool
	node     string
	looks    int

	// held is set if this host has got the hold for the present claim.
	held bool
}

// yield returns the shortest wait after the service has ended on this host.
func (t *attempt) yield() time.Duration { return yieldOf(t.prefer, t.delay) }

// run makes one attempt. It returns nil if systemd stops the unit.
func (t *attempt) run(ctx context.Context) error {
	err := t.acquire(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		t.remember(endFailed)
		return err
	}

	why := t.hold(ctx)
	if ctx.Err() != nil {
		return nil
	}

	t.log("stopping %s on this host: %s", t.service, why)
	t.say("stopping " + t.service + ": " + string(why))
	t.remember(why)
	stopping, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	if _, err := t.host.Run(stopping, "systemctl", "stop", "--", t.service); err != nil && ctx.Err() == nil {
		return fmt.Errorf("cannot stop %s: %w", t.service, err)
	}

	return nil
}

// acquire waits until this host has claimed the volume. It returns an error if the host cannot use the
// volume.
func (t *attempt) acquire(ctx context.Context) error {
	var vacant time.Time
	for {
		s, known := t.look(ctx)
		switch {
		case !known || s.holder != "":
			vacant = time.Time{}
		case vacant.IsZero():
			vacant = t.now()
		}
		if !vacant.IsZero() {
			s.vacant = t.now().Sub(vacant)
		}

		claims, reason := s.next()
		if !known {
			claims, reason = false, "the agent does not answer"
		}
		if claims {
			done, err := t.tryClaim(ctx)
			if done || err != nil {
				return err
			}
		} else {
			t.say("standby: " + reason)
		}

		if err := t.sleep(ctx, every); err != nil {
			return err
		}
	}
}

// look asks the agent and reads the files of this host. The result known is false if the agent does not
// answer, or cannot see the holds of the volume.
func (t *attempt) look(ctx context.Context) (s standby, known bool) {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()

	known = t.askNode(ctx) && t.node != ""
	r, err := t.files.read()
	if err != nil {
		t.log("%v; earlier failures do not count", err)
	}

	s = standby{paused: t.files.paused(), draining: t.draining, backOff: r.backOff(t.now(), t.yield()), rank: rankOf(t.node, t.prefer), delay: t.delay}
	first := s.rank == 0 && s.backOff == 0
	if first || !known {
		return s, known
	}

	v, warnings, err := t.agent.AnyVolume(ctx, t.volume)
	if err != nil || len(warnings) > 0 {
		return s, false
	}
	s.holder, s.chosen = liveHolder(v.Holds, t.node), v.Move != nil && v.Move.To == t.node
	return s, true
}

// askNode asks the agent whether the host is draining. Without an answer, the last answer counts.
func (t *attempt) askNode(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	node, err := t.agent.Node(ctx)
	if err != nil {
		return false
	}
	t.node, t.draining = node.ID, node.Draining
	return true
}

// liveHolder returns another host that holds the volume, and that may still use it. A host that was
// stopped in order is expected back, so it counts as well.
func liveHolder(holds []api.Hold, self string) string {
	for _, h := range holds {
		if h.Host != self && !slices.Contains([]string{api.HostGone, api.HostFencing, api.HostFenced}, h.HostState) {
			return h.Host
		}
	}
	return ""
}

// tryClaim claims the volume, and waits for it while the host may have it. The result done is set if
// the host has the volume. An error means that this host cannot use the volume.
func (t *attempt) tryClaim(ctx context.Context) (done bool, err error) {
	t.say("standby: waiting for volume " + output.OneLine(t.volume))
	t.held = false
	waiting, cancel := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for t.sleep(waiting, every) == nil {
			if t.askNodeAtTimes(waiting) && !t.held {
				t.held = t.hasHold(waiting)
			}
			if t.files.paused() || t.draining {
				cancel()
			}
		}
	})

	err = t.claim(waiting)
	withdrawn := waiting.Err() != nil
	cancel()
	watcher.Wait()

	switch code := command.CodeOf(err); {
	case err == nil:
		return true, nil
	case withdrawn:
		return false, nil //nolint:nilerr // the error is that of the withdrawn claim
	case slices.Contains(otherReasons, code) && !t.held:
		t.say("standby: " + output.OneLine(err.Error()))
		return false, t.sleep(ctx, retryEvery)
	default:
		return false, err
	}
}

// askNodeAtTimes asks the agent in some of the looks whether the host is draining. It reports whether it
// has got an answer.
func (t *attempt) askNodeAtTimes(ctx context.Context) bool {
	t.looks++
	return t.looks%nodeEvery == 0 && t.askNode(ctx)
}

// hasHold reports whether this host has the hold of the volume. If its claim fails then, the host keeps
// the volume from hosts that may be able to use it.
func (t *attempt) hasHold(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	v, _, err := t.agent.AnyVolume(ctx, t.volume)
	return err == nil && slices.ContainsFunc(v.Holds, func(h api.Hold) bool { return h.Host == t.node })
}

// hold runs the service until the host must give the volume up.
func (t *attempt) hold(ctx context.Context) end {
	running, cancel := context.WithCancel(ctx)
	started := make(chan error, 1)
	var starter sync.WaitGroup
	starter.Go(func() { started <- t.start(running) })
	defer func() {
		cancel()
		starter.Wait() // so that the start comes before the stop
	}()

	t.log("this host has volume %q; starting %s", t.volume, t.service)
	t.say("active")
	starting := true
	for {
		now := active{}
		select {
		case err := <-started:
			starting = false
			if err != nil {
				t.log("%v", err)
				now.service = serviceFailed
			}
		default:
		}

		if !starting && now.service == serviceRuns {
			now.service = t.host.service(ctx, t.service)
		}
		if t.askNodeAtTimes(ctx) {
			now.moving = t.isMoving(ctx)
		}
		now.paused, now.draining = t.files.paused(), t.draining
		now.lost = t.lost(ctx)

		if why := now.next(); why != keep {
			return why
		}
		if t.sleep(ctx, every) != nil {
			return keep
		}
	}
}

// isMoving reports whether an administrator moves the volume from this host to another one.
func (t *attempt) isMoving(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	v, _, err := t.agent.AnyVolume(ctx, t.volume)
	return err == nil && v.Move != nil && v.Move.From == t.node && v.Move.To != t.node
}

// start starts the service, and waits until systemd has started it. A service that failed too often on
// this host gets a new chance.
func (t *attempt) start(ctx context.Context) error {
	_, _ = t.host.Run(ctx, "systemctl", "reset-failed", "--", t.service) // it fails if the service is not loaded
	_, err := t.host.Run(ctx, "systemctl", "start", "--", t.service)
	return err
}

// lost reports whether the claim has ended. Without an answer of the agent, the claim still exists:
// the agent ends no claim while it does not run.
func (t *attempt) lost(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	claim, err := t.agent.Claim(ctx, t.volume, t.service)
	if err != nil {
		return command.IsNotFound(err)
	}
	return !claim.Wanted
}

// remember stores how the service ended.
func (t *attempt) remember(why end) {
	r, err := t.files.read()
	if err != nil {
		t.log("%v; earlier failures do not count", err)
	}

	now := r.after(why, t.now(), t.yield())
	if now == r {
		return
	}
	if wait := now.backOff(t.now(), t.yield()); wait > 0 {
		t.log("other hosts go first, for %s (%d failures)", wait, now.Failures)
	}
	if err := t.files.write(now); err != nil {
		t.log("cannot store the failures of %s: %v", t.service, err)
	}
}
