package san

import (
	"slices"
	"sync"
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

// faults contains the faults that the test has set.
type faults struct {
	closed <-chan struct{} // ends every wait
	lock   sync.Mutex
	list   []*fault
}

// Hold stops the calls of a method from a node before their effect, until the test calls the
// returned function. An empty node means all nodes. If the caller gives up, the call waits on, and
// its effect comes late.
func (s *faults) Hold(method, node string) (release func()) {
	f := &fault{method: method, node: node, until: make(chan struct{})}
	remove := s.enlist(f)
	return func() {
		if remove() {
			close(f.until)
		}
	}
}

// Delay delays the effect of the calls of a method from a node, until the test calls the returned
// function. Calls that wait already are not affected by the function.
func (s *faults) Delay(method, node string, d time.Duration) (remove func()) {
	drop := s.enlist(&fault{method: method, node: node, delay: d})
	return func() { drop() }
}

// FailNext makes the next call of a method from a node fail without an effect. An empty node means
// all nodes.
func (s *faults) FailNext(method, node string, code codes.Code) {
	s.enlist(&fault{method: method, node: node, once: true, code: code})
}

// LoseAnswer makes the next call of a method from a node fail with Unavailable after its effect.
func (s *faults) LoseAnswer(method, node string) {
	s.enlist(&fault{method: method, node: node, once: true, lose: true})
}

func (s *faults) enlist(f *fault) (remove func() bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.list = append(s.list, f)

	return func() bool {
		s.lock.Lock()
		defer s.lock.Unlock()
		before := len(s.list)
		s.list = slices.DeleteFunc(s.list, func(other *fault) bool { return other == f })
		return len(s.list) < before
	}
}

// suffer applies all faults that match a call. It calls held while a fault delays the call. It
// returns the code with which the call must fail, and whether the caller must not get the answer.
func (s *faults) suffer(method, node string, held func(bool)) (code codes.Code, lose bool) {
	s.lock.Lock()
	var mine []*fault
	s.list = slices.DeleteFunc(s.list, func(f *fault) bool {
		if f.method != method || (f.node != "" && f.node != node) {
			return false
		}
		mine = append(mine, f)
		return f.once
	})
	s.lock.Unlock()

	held(slices.ContainsFunc(mine, func(f *fault) bool { return f.until != nil || f.delay > 0 }))
	defer held(false)
	for _, f := range mine {
		if !s.await(f) {
			return codes.Unavailable, lose
		}
		if f.code != codes.OK {
			code = f.code
		}
		lose = lose || f.lose
	}

	return code, lose
}

// await waits for the end of a fault. It returns false if the SAN ended first.
func (s *faults) await(f *fault) bool {
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
