package supervisor

import (
	"fmt"
	"sync"
	"time"
)

// State is the state of one part of a plugin.
type State string

// The states.
const (
	Stopped    State = "stopped"     // not started, or stopped on purpose
	Starting   State = "starting"    // started, but not known to be ready yet
	Ready      State = "ready"       // calls can be sent
	Unhealthy  State = "unhealthy"   // it runs, or should run, but does not answer as it must
	BackingOff State = "backing-off" // it ended, and is started again after a pause
	Failed     State = "failed"      // a person must change something first
)

// machine is the state machine of one part. The list below has all its transitions. An event in any
// other state is an error and changes nothing.
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
type machine struct {
	// changed is called after every event that changes the state, with no lock held. If one
	// goroutine drives the machine, calls never overlap.
	changed func(from State, now status)

	mu  sync.Mutex
	now status
}

// status is the state of the machine at one moment.
type status struct {
	state    State
	reason   string
	since    time.Time
	next     time.Time // when a plugin in the state backing-off is started again
	restarts int
}

func newMachine(changed func(from State, now status)) *machine {
	return &machine{changed: changed, now: status{state: Stopped, reason: "not started yet", since: time.Now()}}
}

// snapshot returns the current status.
func (m *machine) snapshot() status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// start records that the plugin is about to be started, connected to, or re-attached.
func (m *machine) start(reason string) error {
	return m.event("start", func(s *status) bool {
		switch s.state {
		case BackingOff:
			s.restarts++
			s.set(Starting, reason)
		case Stopped, Failed:
			s.set(Starting, reason)
		default:
			return false
		}

		return true
	})
}

// ready records that the plugin reported that it is ready, and identified itself.
func (m *machine) ready() error {
	return m.event("ready", func(s *status) bool {
		switch s.state {
		case Starting, Unhealthy:
			s.set(Ready, "")
		default:
			return false
		}

		return true
	})
}

// unhealthy records that the plugin does not answer as it must.
func (m *machine) unhealthy(reason string) error {
	return m.event("unhealthy", func(s *status) bool {
		switch s.state {
		case Starting, Ready:
			s.set(Unhealthy, reason)
		case Unhealthy:
			s.reason = reason
		default:
			return false
		}

		return true
	})
}

// lost records that the plugin has ended or is unusable, and is started again at next.
func (m *machine) lost(reason string, next time.Time) error {
	return m.event("lost", func(s *status) bool {
		switch s.state {
		case Starting, Ready, Unhealthy:
			s.set(BackingOff, reason)
			s.next = next
		default:
			return false
		}

		return true
	})
}

// refuse records that the plugin cannot be used until a person changes something.
func (m *machine) refuse(reason string) error {
	return m.event("refuse", func(s *status) bool {
		switch s.state {
		case Starting, Unhealthy, Stopped:
			s.set(Failed, reason)
		case Failed:
			s.reason = reason
		default:
			return false
		}

		return true
	})
}

// stop records that the plugin is stopped on purpose.
func (m *machine) stop(reason string) error {
	return m.event("stop", func(s *status) bool {
		switch s.state {
		case Starting, Ready, Unhealthy, BackingOff, Failed:
			s.set(Stopped, reason)
		case Stopped:
			s.reason = reason
		default:
			return false
		}

		return true
	})
}

// note changes only the reason. It is not an event.
func (m *machine) note(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.reason = reason
}

// replaced counts a restart that this agent did not make. It is not an event.
func (m *machine) replaced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.restarts++
}

// set enters a state.
func (s *status) set(state State, reason string) {
	s.state, s.reason, s.since, s.next = state, reason, time.Now(), time.Time{}
}

// event applies one event under the lock, and calls changed if the state differs.
func (m *machine) event(name string, apply func(*status) bool) error {
	m.mu.Lock()
	from := m.now.state
	ok := apply(&m.now)
	now := m.now
	m.mu.Unlock()
	if !ok {
		return fmt.Errorf("event %q cannot be in state %q", name, from)
	}
	if now.state != from {
		m.changed(from, now)
	}

	return nil
}
