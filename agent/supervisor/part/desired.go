package part

import "github.com/volagent/volagent/volmgr/plugin"

// Wish is the operator's last request for a part of a plugin.
type Wish int

// These are the possible wishes. At first, the wish of a part is Run, or Stop if the part's record
// says so.
const (
	Run     Wish = iota // the part runs, and is restarted each time it ends
	Restart             // the part is stopped and started once
	Pause               // the part is stopped until this agent ends
	Stop                // the part is stopped until an operator starts it
)

// Halts reports whether the wish requires that no instance runs.
func (w Wish) Halts() bool { return w == Pause || w == Stop }

// Desired is the state of a part that its definition and its operator request. Other goroutines
// change it and then wake the worker of the part.
type Desired struct {
	Wish  Wish
	Retry bool // start again at once, even after a failure

	Change *Change // nil if the definition in use is the wanted one
	Force  bool    // apply Change without waiting for volumes
	File   string  // the file of the definition, for error messages
	Fault  error   // why the file cannot be used; nil if it can
}

// Change is a definition that is not in use yet.
type Change struct {
	Definition *plugin.Definition // nil if the file was removed, or the plugin was deregistered
}

// Leaves reports whether the part is about to be removed.
func (d Desired) Leaves() bool { return d.Change != nil && d.Change.Definition == nil }

// Actual is the current state of a part. The worker of the part updates it.
type Actual struct {
	Definition *plugin.Definition // the definition in use; nil if the part never had a valid one
	// Settled is the last wish that the worker has carried out: Run, Pause or Stop. After Pause or
	// Stop, no instance runs.
	Settled Wish

	Info        plugin.Info // the plugin's last report about itself
	Up          bool        // whether an instance runs
	PID         int         // process id of the instance; 0 if unknown
	Key         string      // identifies the last instance; see runner.Instance
	Incarnation uint64      // number of the last instance
	LastExit    string      // how the last instance ended
	Warnings    []string    // warnings about the running instance
}

// Propose stores the definition that the files now contain. If the files contain no valid
// definition, err is the reason. If both def and err are nil, the file was removed. The result
// adopt is true if the caller must put def into force at once, because no definition is in use or
// the definition in use is equal.
func (d *Desired) Propose(def *plugin.Definition, file string, err error, inUse *plugin.Definition) (adopt bool) {
	d.Fault, d.File, d.Change = err, file, nil
	switch {
	case err != nil: // keep the definition in use, if there is one
	case def != nil && (inUse == nil || def.Equal(inUse)):
		adopt = true
	default:
		d.Change = &Change{Definition: def}
	}

	d.Force = d.Force && d.Change != nil
	d.Retry = true
	return adopt
}

// AskStart requests that the part runs. If the part is not ready, it is started again at once. If a
// restart was already requested, it still happens.
func (d *Desired) AskStart() {
	if d.Wish.Halts() {
		d.Wish = Run
	}
	d.Retry = true
}

// AskRestart requests that the part is stopped and started.
func (d *Desired) AskRestart() { d.Wish, d.Retry = Restart, true }

// AskStop requests that the part is stopped. The agent stores the stop, even if the part was
// already paused.
func (d *Desired) AskStop() { d.Wish = Stop }

// AskPause requests that the part is stopped until this agent ends. If the part was already
// stopped, it stays stopped after that.
func (d *Desired) AskPause() {
	if d.Wish != Stop {
		d.Wish = Pause
	}
}
