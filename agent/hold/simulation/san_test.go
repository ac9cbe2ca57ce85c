package simulation_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// san is the simulated storage with its controllers. Together with the mounts of the hosts, it shows which
// hosts write which volume. Its lock also guards the mounts and the power of all hosts.
type san struct {
	w *world

	mu       sync.Mutex
	disks    map[string]*disk // by external id
	calls    map[*flight]bool
	failures map[string]int // failures in a row, by call and volume
}

// disk is one volume of the storage.
type disk struct {
	id       string
	driver   driver
	attached map[string]bool // by node id
}

// flight is a controller call that the storage has not ended.
type flight struct {
	disk   *disk
	kind   call.Method
	node   string // the node id of the call
	by     *agent
	late   bool // the agent was paused between the announcement and the call
	alone  bool // the executor does not wait for the call any more
	timer  *time.Timer
	lands  time.Time
	effect func()
}

// fate determines how a call ends.
type fate int

const (
	goes         fate = iota
	refused           // the call is refused without an effect
	failed            // the error does not say whether the call took effect; it did not
	failedDone        // an error, although the call has taken effect
	failedLater       // an error, and the call takes effect later
	expired           // no answer within the deadline, and no effect
	expiredLater      // no answer within the deadline, and the call takes effect after that
	slow              // the call needs almost the whole deadline
)

// likely are the fates of a call that goes wrong.
var likely = []fate{refused, refused, failed, failedDone, failedDone, failedLater, expired, expiredLater, expiredLater, slow}

// fateOf draws the fate of a call, and how long it takes.
func (s *san) fateOf(name, subject string, deadline time.Duration) (f fate, takes time.Duration) {
	r := s.w.draw(name)
	takes = 20*time.Millisecond + time.Duration(r.Int64N(int64(deadline/12)))
	if r.Float64() >= s.w.troubles().calls {
		delete(s.failures, subject)
		return goes, takes
	}
	f = likely[r.IntN(len(likely))]
	if s.failures[subject]++; s.failures[subject] > 2 { // otherwise the retries become rare, and the way to rest long
		f = slow
	}
	switch f {
	case slow:
		delete(s.failures, subject)
		takes = deadline/2 + time.Duration(r.Int64N(int64(deadline*4/10)))
	case failedLater:
		takes = time.Duration(r.Int64N(int64(deadline * 9 / 10)))
	case expired, expiredLater:
		takes = deadline + time.Duration(r.Int64N(int64(deadline*9/10)))
	}
	s.w.count("fault: call of a plugin goes wrong")
	return f, takes
}

// controller is the controller of a driver on one host.
type controller struct {
	a *agent
}

// failedCall returns the error of a call that the plugin has answered.
func failedCall(m call.Method, code, message string) *volume.CallError {
	return &volume.CallError{Step: string(m), Code: code, Message: message, Retry: volume.RetryBackoff, Answered: true}
}

// noAnswer returns the error of a call without an answer.
func noAnswer(m call.Method, code string) *volume.CallError {
	return &volume.CallError{Step: string(m), Code: code, Message: "no answer", Retry: volume.RetryBackoff}
}

// Call implements call.Caller.
func (c controller) Call(ctx context.Context, m call.Method, request any) (any, error) {
	c.a.gate()
	late := c.a.h.resumedLately()
	if c.a.gone() {
		return nil, noAnswer(m, volume.CodeCanceled)
	}
	s := c.a.h.w.san
	switch q := request.(type) {
	case call.ListVolumesRequest:
		return s.list(), nil
	case call.ControllerPublishRequest:
		answer, err := s.begin(ctx, c.a, m, q.ExternalID, q.NodeID, late)
		return answer, err
	case call.ControllerUnpublishRequest:
		_, err := s.begin(ctx, c.a, m, q.ExternalID, q.NodeID, late)
		return call.Nothing{}, err
	default:
		return nil, failedCall(m, volume.CodeUnimplemented, "the simulation has no such call")
	}
}

// list returns the nodes to which the volumes are attached.
func (s *san) list() call.VolumePage {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := call.VolumePage{}
	for _, id := range slices.Sorted(maps.Keys(s.disks)) {
		d := s.disks[id]
		if !d.driver.lists {
			continue
		}
		one := call.StorageVolume{ExternalID: id, PublishedNodes: slices.Sorted(maps.Keys(d.attached))}
		page.Entries = append(page.Entries, one)
	}
	return page
}

// nodes returns the nodes to which a volume is attached.
func (s *san) nodes(external string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.disks[external].attached))
}

// begin makes one ControllerPublishVolume or ControllerUnpublishVolume, and waits for the answer.
func (s *san) begin(ctx context.Context, a *agent, m call.Method, external, node string, late bool) (map[string]string, error) {
	s.mu.Lock()
	d := s.disks[external]
	f, takes := s.fateOf(fmt.Sprint(a.h.name, m, d.id), fmt.Sprint(m, d.id), controllerDeadline)
	one := &flight{disk: d, kind: m, node: node, by: a, late: late}
	s.w.count("call: " + string(m))
	s.w.note(a.h.name, d.id, "%s of node %s begins (fate %d, %s, late %t)", m, node, f, takes, late)
	s.w.judge.callBegins(one)
	answer := make(chan error, 1)
	switch f {
	case goes, slow:
		s.launch(one, takes, func() { answer <- s.apply(one) })
	case refused:
		answer <- failedCall(m, volume.CodeFailedPrecondition, "the storage refuses the call")
	case failed:
		answer <- failedCall(m, volume.CodeInternal, "the storage has failed")
	case failedDone:
		s.launch(one, takes, func() {
			_ = s.apply(one)
			answer <- failedCall(m, volume.CodeInternal, "the storage has failed after the effect")
		})
	case failedLater:
		answer <- failedCall(m, volume.CodeInternal, "the storage continues after the answer")
		s.launch(one, takes, func() { _ = s.apply(one) })
	case expired:
		s.launch(one, takes, func() {})
	case expiredLater:
		s.launch(one, takes, func() { _ = s.apply(one) })
	}
	s.mu.Unlock()

	err := awaitAnswer(ctx, a, m, answer, controllerDeadline)
	s.mu.Lock()
	one.alone = true
	s.mu.Unlock()
	a.gate()
	if a.gone() {
		err = noAnswer(m, volume.CodeCanceled)
	}
	s.w.note(a.h.name, d.id, "%s of node %s ends: %v", m, node, err)
	return map[string]string{}, err
}

// awaitAnswer waits for the answer of a plugin.
func awaitAnswer(ctx context.Context, a *agent, m call.Method, answer <-chan error, deadline time.Duration) error {
	select {
	case err := <-answer:
		return err
	case <-time.After(deadline):
		return noAnswer(m, volume.CodeDeadlineExceeded)
	case <-ctx.Done():
		return noAnswer(m, volume.CodeCanceled)
	case <-a.dead:
		return noAnswer(m, volume.CodeCanceled)
	}
}

// launch lets a call take effect after a time. The caller holds mu.
func (s *san) launch(one *flight, takes time.Duration, effect func()) {
	s.calls[one] = true
	one.effect, one.lands = effect, time.Now().Add(takes)
	one.timer = time.AfterFunc(takes, func() { s.land(one) })
}

// land lets a call take effect.
func (s *san) land(one *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.calls[one] {
		return
	}
	delete(s.calls, one)
	one.effect()
}

// orphaned limits the remaining time of the calls of an agent that has ended. A call has no effect later
// than one deadline after the end of its executor. The caller holds mu.
func (s *san) orphaned(a *agent) {
	for one := range s.calls {
		most := controllerDeadline * 9 / 10
		if one.by == a && time.Until(one.lands) > most {
			one.lands = time.Now().Add(most)
			one.timer.Reset(most)
		}
	}
}

// apply lets a controller call take effect. The caller holds mu.
func (s *san) apply(one *flight) error {
	d := one.disk
	if one.kind == call.ControllerUnpublish {
		if d.attached[one.node] {
			s.w.judge.detached(one)
		}
		delete(d.attached, one.node)
		s.w.note("san", d.id, "detached from node %s by %s", one.node, one.by.h.name)
		return nil
	}
	for other := range d.attached {
		if d.driver.single && other != one.node {
			return failedCall(one.kind, volume.CodeFailedPrecondition, "the volume is attached to node "+other)
		}
	}
	d.attached[one.node] = true
	s.w.note("san", d.id, "attached to node %s by %s", one.node, one.by.h.name)
	s.w.judge.writers(d)
	return nil
}
