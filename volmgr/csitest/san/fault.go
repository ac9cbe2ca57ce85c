package san

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// fault changes the calls that it matches. Faults apply to the calls of the controller and to
// NodeStageVolume, NodeUnstageVolume, NodePublishVolume, NodeUnpublishVolume and NodeExpandVolume.
type fault struct {
	method, node string // the node whose driver receives the call; empty means every node
	once         bool

	until chan struct{} // holds the call until the channel is closed, or nil
	delay time.Duration
	code  codes.Code
	lose  bool
}

// Hold stops the calls of a method from a node before their effect, until the test calls the
// returned function. An empty node means all nodes. If the caller gives up, the call waits on, and
// its effect comes late.
func (s *SAN) Hold(method, node string) (release func()) {
	f := &fault{method: method, node: node, until: make(chan struct{})}
	remove := s.add(f)
	return func() {
		if remove() {
			close(f.until)
		}
	}
}

// Delay delays the effect of the calls of a method from a node, until the test calls the returned
// function. Calls that wait already are not affected by the function.
func (s *SAN) Delay(method, node string, d time.Duration) (remove func()) {
	drop := s.add(&fault{method: method, node: node, delay: d})
	return func() { drop() }
}

// FailNext makes the next call of a method from a node fail without an effect. An empty node means
// all nodes.
func (s *SAN) FailNext(method, node string, code codes.Code) {
	s.add(&fault{method: method, node: node, once: true, code: code})
}

// LoseAnswer makes the next call of a method from a node fail with Unavailable after its effect.
func (s *SAN) LoseAnswer(method, node string) {
	s.add(&fault{method: method, node: node, once: true, lose: true})
}

func (s *SAN) add(f *fault) (remove func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)

	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		before := len(s.faults)
		s.faults = slices.DeleteFunc(s.faults, func(other *fault) bool { return other == f })
		return len(s.faults) < before
	}
}

// suffer applies all faults that match a call.
func (s *SAN) suffer(c *call) (code codes.Code, lose bool) {
	s.mu.Lock()
	var mine []*fault
	s.faults = slices.DeleteFunc(s.faults, func(f *fault) bool {
		if f.method != c.method || (f.node != "" && f.node != c.node) {
			return false
		}
		mine = append(mine, f)
		return f.once
	})
	c.held = slices.ContainsFunc(mine, func(f *fault) bool { return f.until != nil || f.delay > 0 })
	s.mu.Unlock()

	for _, f := range mine {
		if !s.await(f) {
			code = codes.Unavailable
			break
		}
		if f.code != codes.OK {
			code = f.code
		}
		lose = lose || f.lose
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	c.held = false

	return code, lose
}

// await waits for the end of a fault. It returns false if the SAN ended first.
func (s *SAN) await(f *fault) bool {
	var timer <-chan time.Time
	switch {
	case f.delay > 0:
		timer = time.After(f.delay)
	case f.until == nil:
		return true
	}

	select {
	case <-f.until:
		return true
	case <-timer:
		return true
	case <-s.closed:
		return false
	}
}

// AwaitEvent waits until the journal contains an event after the given number that match selects,
// and returns the event.
func (s *SAN) AwaitEvent(ctx context.Context, after int64, match func(Event) bool) (Event, error) {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()

	for {
		for _, e := range s.Events() {
			if e.Seq > after && match(e) {
				return e, nil
			}
		}

		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-again.C:
		}
	}
}
