package part

import "github.com/volagent/volagent/volmgr/volume"

// Wish is the last request of the operator about a part.
type Wish int

// The wishes. A part begins with Run, or with Stop if its record says so.
const (
	Run     Wish = iota // run, and be started again after each end
	Restart             // be stopped and started once
	Pause               // be stopped until this agent ends
	Stop                // be stopped until an operator starts it
)

// Halts reports whether no instance may run.
func (w Wish) Halts() bool { return w == Pause || w == Stop }

// Desired is the state that the definitions and the operator want. Other goroutines change it, and
// wake the worker of the part.
type Desired struct {
	Wish  Wish
	Retry bool // try again now, even after a failure

	Change *Change // nil: the definition in use is wanted
	Force  bool    // put Change into force without waiting for volumes
	File   string  // the file of the definition, for messages
	Fault  error   // why the file cannot be used
}

// Change is a definition that is not in use yet.
type Change struct {
	Definition *volume.PluginDefinition // nil: the file was removed or the plugin deregistered
}

// Leaves reports whether the part must be removed.
func (d Desired) Leaves() bool { return d.Change != nil && d.Change.Definition == nil }

// Actual is the state of a part as its worker left it.
type Actual struct {
	Definition *volume.PluginDefinition // in use; nil if the part never had a valid one
	// Settled is the last wish that was fulfilled: Run, Pause or Stop. If it halts, no instance runs.
	Settled Wish

	Info        volume.PluginInfo // the last report of the plugin about itself
	Up          bool              // an instance runs
	PID         int               // of the instance; 0 if it is unknown
	Key         string            // of the last instance
	Incarnation uint64            // number of the last instance
	LastExit    string            // how the last instance ended
	Warnings    []string          // about the instance that runs
}

// Propose takes over the definition that the files contain now. err is the reason why they contain
// none. Without definition and error, the file was removed. adopt reports that the definition
// replaces the one in use at once, because that is equal or missing.
func (d *Desired) Propose(def *volume.PluginDefinition, file string, err error, inUse *volume.PluginDefinition) (adopt bool) {
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

// AskStart ends a stop, and makes a part that is not ready try again at once. A requested restart
// still happens.
func (d *Desired) AskStart() {
	if d.Wish.Halts() {
		d.Wish = Run
	}
	d.Retry = true
}

// AskRestart asks for the part to be stopped and started.
func (d *Desired) AskRestart() { d.Wish, d.Retry = Restart, true }

// AskStop asks for the part to be stopped. The agent stores the stop, also that of a paused part.
func (d *Desired) AskStop() { d.Wish = Stop }

// AskPause asks for the part to be stopped while this agent runs. A part that is stopped anyway
// stays stopped.
func (d *Desired) AskPause() {
	if d.Wish != Stop {
		d.Wish = Pause
	}
}
