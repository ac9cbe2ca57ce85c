package statedb

import (
	"sync/atomic"

	"github.com/volagent/volagent/volmgr/volume"
)

// verb is the method of DB that requested a change.
type verb int

const (
	update verb = iota
	happened
	save
)

// request is a change that the writer must make.
type request struct {
	verb   verb
	fn     func(*Tx) error
	saving volume.Saving // last result of a save's function
	own    changes       // changes that the last run of fn made
	done   chan error    // receives the result; buffered
}

func newRequest(v verb, fn func(*Tx) error) *request {
	return &request{verb: v, fn: fn, done: make(chan error, 1)}
}

// run runs the change.
func (r *request) run(tx *Tx) error {
	err := r.fn(tx)
	r.own = tx.own
	return err
}

// urgent reports whether the change must be in the log, or committed, before a reader can see it.
func (r *request) urgent() bool { return r.verb == save && r.saving != volume.SaveWithNext }

// health counts the commits and stores the error of the most recent one.
type health struct {
	commits, failures atomic.Uint64
	last              atomic.Pointer[error] // error of the last commit, or nil
}

// Commits returns the number of commits since Open.
func (h *health) Commits() uint64 { return h.commits.Load() }

// Failures returns the number of failed commits since Open.
func (h *health) Failures() uint64 { return h.failures.Load() }

// failed returns the error of the last commit, or nil.
func (h *health) failed() error {
	if err := h.last.Load(); err != nil {
		return *err
	}
	return nil
}

// committed records the result of a commit.
func (h *health) committed(err error) {
	if err != nil {
		h.failures.Add(1)
		h.last.Store(&err)
		return
	}
	h.commits.Add(1)
	h.last.Store(nil)
}
