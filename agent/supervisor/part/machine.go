package part

import (
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
)

// State is the state of one part of a plugin.
type State string

// These are the states of a part, with the names of the domain.
const (
	Stopped    State = plugin.Stopped
	Starting   State = plugin.Starting
	Ready      State = plugin.Ready
	Unhealthy  State = plugin.Unhealthy
	BackingOff State = plugin.BackingOff
	Failed     State = plugin.Failed
)

// Machine is the state machine of one part. The list below contains all transitions. An event that
// is not listed for the current state is an error and changes nothing.
//
//	stopped     --start-->     starting
//	starting    --ready-->     ready
//	ready       --unhealthy--> unhealthy     a probe failed, or the socket is gone
//	unhealthy   --ready-->     ready
//
//	starting    --unhealthy--> unhealthy     no process serves the socket yet
//	unhealthy   --unhealthy--> unhealthy     the reason may differ
//
//	starting    --lost-->      backing-off   cannot be started, exited, or not ready in time
//	ready       --lost-->      backing-off   exited
//	unhealthy   --lost-->      backing-off   exited, or hung for too long
//	backing-off --start-->     starting      counted as a restart
//
//	starting    --refuse-->    failed        the wrong driver answers
//	unhealthy   --refuse-->    failed
//	stopped     --refuse-->    failed        its file is bad
//	failed      --refuse-->    failed
//	failed      --start-->     starting
//
//	starting    --stop-->      stopped
//	ready       --stop-->      stopped
//	unhealthy   --stop-->      stopped
//	backing-off --stop-->      stopped
//	failed      --stop-->      stopped
//	stopped     --stop-->      stopped
type Machine struct {
	// The machine calls changed, without the lock, after every event that changes the state. If
	// only one goroutine drives the machine, two calls never overlap.
	changed func(from State, now Status)

	mu  sync.Mutex
	now Status
}

// Status is a snapshot of the machine.
type Status struct {
	State    State
	Reason   string
	Since    time.Time
	Next     time.Time // when the next start is due, in the state backing-off
	Restarts int
}

// NewMachine returns the state machine of a part that has not been started yet. The machine calls
// changed after every event that changes the state.
func NewMachine(changed func(from State, now Status)) *Machine {
	return &Machine{changed: changed, now: Status{State: Stopped, Reason: "not started yet", Since: time.Now()}}
}

// Snapshot returns the current status.
func (m *Machine) Snapshot() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Start records that the worker is about to start the plugin, to connect to it, or to monitor it
// again.
func (m *Machine) Start(reason string) error {
	return m.event("start", func(s *Status) bool {
		switch s.State {
		case BackingOff:
			s.Restarts++
			s.set(Starting, reason)
		case Stopped, Failed:
			s.set(Starting, reason)
		default:
			return false
		}

		return true
	})
}

// Ready records that the plugin has reported that it is ready, and has identified itself.
func (m *Machine) Ready() error {
	return m.event("ready", func(s *Status) bool {
		switch s.State {
		case Starting, Unhealthy:
			s.set(Ready, "")
		default:
			return false
		}

		return true
	})
}

// Unhealthy records that the plugin does not answer correctly.
func (m *Machine) Unhealthy(reason string) error {
	return m.event("unhealthy", func(s *Status) bool {
		switch s.State {
		case Starting, Ready:
			s.set(Unhealthy, reason)
		case Unhealthy:
			s.Reason = reason
		default:
			return false
		}

		return true
	})
}

// Lost records that the plugin has ended or cannot be used. The argument next is the time of the
// next start.
func (m *Machine) Lost(reason string, next time.Time) error {
	return m.event("lost", func(s *Status) bool {
		switch s.State {
		case Starting, Ready, Unhealthy:
			s.set(BackingOff, reason)
			s.Next = next
		default:
			return false
		}

		return true
	})
}

// Refuse records that the plugin must not be used until an operator fixes a problem.
func (m *Machine) Refuse(reason string) error {
	return m.event("refuse", func(s *Status) bool {
		switch s.State {
		case Starting, Unhealthy, Stopped:
			s.set(Failed, reason)
		case Failed:
			s.Reason = reason
		default:
			return false
		}

		return true
	})
}

// Stop records that the plugin is stopped on purpose.
func (m *Machine) Stop(reason string) error {
	return m.event("stop", func(s *Status) bool {
		switch s.State {
		case Starting, Ready, Unhealthy, BackingOff, Failed:
			s.set(Stopped, reason)
		case Stopped:
			s.Reason = reason
		default:
			return false
		}

		return true
	})
}

// Note changes only the reason. It does not count as an event of the state machine.
func (m *Machine) Note(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Reason = reason
}

// Replaced counts a restart by another program. It does not count as an event of the state machine.
func (m *Machine) Replaced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Restarts++
}

// set changes the state and its reason.
func (s *Status) set(state State, reason string) {
	s.State, s.Reason, s.Since, s.Next = state, reason, time.Now(), time.Time{}
}

// event applies one event while it holds the lock. If the state has changed, event then calls
// changed.
func (m *Machine) event(name string, apply func(*Status) bool) error {
	m.mu.Lock()
	from := m.now.State
	ok := apply(&m.now)
	now := m.now
	m.mu.Unlock()
	if !ok {
		return fmt.Errorf("event %q cannot be in state %q", name, from)
	}
	if now.State != from {
		m.changed(from, now)
	}

	return nil
}
