package part

import "github.com/volagent/volagent/volmgr/plugin"

// Wish is the operator's last request for a part.
type Wish int

// These are the wishes. The first wish of a part is Run, or Stop if its record says so.
const (
	Run     Wish = iota // the part runs, and restarts after each end
	Restart             // the part stops and starts once
	Pause               // the part is stopped until this agent ends
	Stop                // the part is stopped until an operator starts it
)

// Halts reports whether the wish forbids a running instance.
func (w Wish) Halts() bool { return w == Pause || w == Stop }

// Desired is the state of a part that its definition and the operator ask for. Other goroutines
// change it and then wake the worker of the part.
type Desired struct {
	Wish  Wish
	Retry bool // try again at once, even after a failure

	Change *Change // nil: the definition in use is the wanted one
	Force  bool    // put Change into force without waiting for volumes
	File   string  // the file of the definition, for messages
	Fault  error   // the reason why the file cannot be used
}

// Change is a definition that is not in use yet.
type Change struct {
	Definition *plugin.Definition // nil: the file was removed or the plugin deregistered
}

// Leaves reports whether the part must be removed.
func (d Desired) Leaves() bool { return d.Change != nil && d.Change.Definition == nil }

// Actual is the current state of a part. The worker of the part updates it.
type Actual struct {
	Definition *plugin.Definition // the definition in use; nil if the part never had a valid one
	// Settled is the last wish that was fulfilled: Run, Pause or Stop. After Pause or Stop, no
	// instance runs.
	Settled Wish

	Info        plugin.Info // the last report of the plugin about itself
	Up          bool        // an instance runs
	PID         int         // process id of the instance; 0 if it is unknown
	Key         string      // key of the last instance
	Incarnation uint64      // number of the last instance
	LastExit    string      // how the last instance ended
	Warnings    []string    // about the instance that runs
}

// Propose stores the definition that the files now contain. If the files contain none, err is the
// reason. If both def and err are nil, the file was removed. The result adopt reports that the
// definition replaces the one in use at once, because the two are equal or none is in use.
func (d *Desired) Propose(def *plugin.Definition, file string, err error, inUse *plugin.Definition) (adopt bool) {
	d.Fault, d.File, d.Change = err, file, nil
	switch {
	case err != nil: // the definition in use, if any, stays in use
	case def != nil && (inUse == nil || def.Equal(inUse)):
		adopt = true
	default:
		d.Change = &Change{Definition: def}
	}

	d.Force = d.Force && d.Change != nil
	d.Retry = true
	return adopt
}

// AskStart ends a stop. A part that is not ready is started again at once. A restart that was
// already requested still happens.
func (d *Desired) AskStart() {
	if d.Wish.Halts() {
		d.Wish = Run
	}
	d.Retry = true
}

// AskRestart requests that the part is stopped and started.
func (d *Desired) AskRestart() { d.Wish, d.Retry = Restart, true }

// AskStop requests that the part is stopped. The agent stores this stop, even if the part was
// already paused.
func (d *Desired) AskStop() { d.Wish = Stop }

// AskPause requests that the part is stopped until this agent ends. A part that was already stopped
// stays stopped after that.
func (d *Desired) AskPause() {
	if d.Wish != Stop {
		d.Wish = Pause
	}
}
