package part

import "github.com/volagent/volagent/volmgr/plugin"

// Step is the next action of a part's worker.
type Step string

// These are the steps of a worker.
const (
	End    Step = "end"    // stop the instance, because the host shuts down, and do nothing else
	Switch Step = "switch" // stop the instance, then follow the wish and the change; see NewPlan
	Ask    Step = "ask"    // find out whether volumes use the part, and call Next again
	Rest   Step = "rest"   // wait, because the part was stopped on purpose
	Refuse Step = "refuse" // wait, because the part has no definition
	Serve  Step = "serve"  // start an instance, or take over a running one, and keep it ready
)

// Use states whether volumes use the part.
type Use string

// These are the values of Use. To find out whether volumes use the part, the worker must check all
// volumes and block new calls to the plugin. So it does this only if the answer matters.
const (
	Unknown Use = "unknown"
	Used    Use = "used"
	Unused  Use = "unused"
)

// Next decides the next step of a part. It is a pure function, and returns a step for every state.
// The first line of this table that matches the state applies:
//
//	host ends   wish     definition   change    volumes    step
//
//	yes         -        -            -         -          end
//	-           new      -            -         -          switch
//	-           -        none         some      -          switch
//	-           -        -            forced    -          switch
//	-           -        -            at-once   -          switch
//	-           -        -            some      unknown    ask
//	-           -        -            some      unused     switch
//	-           halts    -            -         -          rest
//	-           -        none         -         -          refuse
//	-           -        -            -         -          serve
//
// A wish is new if the worker has not carried it out yet. A change is applied at once if its
// definition contains on_change: restart. Any other change waits until no volume uses the part.
func Next(d Desired, a Actual, hostEnds bool, use Use) Step {
	switch {
	case hostEnds:
		return End
	case d.Wish != a.Settled:
		return Switch
	case d.Change != nil && d.changes(a, use):
		return Switch
	case d.Change != nil && use == Unknown:
		return Ask
	case a.Settled.Halts():
		return Rest
	case a.Definition == nil:
		return Refuse
	default:
		return Serve
	}
}

// changes reports whether the worker may apply the change now.
func (d Desired) changes(a Actual, use Use) bool {
	atOnce := d.Change.Definition != nil && d.Change.Definition.OnChange == plugin.OnChangeRestart
	return a.Definition == nil || d.Force || atOnce || use == Unused
}

// Plan describes the step Switch. The worker carries it out in this order:
//
//  1. It stores whether the operator stopped the part, so that the next agent completes the stop.
//  2. It enters the state stopped with the reason Why.
//  3. It stops the instance. If Sweep is set, it also stops an instance whose start failed.
//  4. If Adopt is set, it puts the change into force.
//  5. It marks the wish as fulfilled.
type Plan struct {
	Wish  Wish   // the wish that the plan fulfils: Run, Pause or Stop
	Why   string // the reason that the status of the plugin shows
	Sweep bool   // also stop an instance that runs although its start failed
	Adopt bool
}

// NewPlan returns the plan for the step Switch. If an operator made a request, the plan also
// applies a pending change, but does not remove a part that volumes use.
func NewPlan(d Desired, a Actual, use Use) Plan {
	starts := a.Settled.Halts() && !d.Wish.Halts()
	p := Plan{
		Wish: d.Wish, Sweep: !starts,
		Adopt: d.Change != nil && (!d.Leaves() || d.changes(a, use)),
	}
	if d.Wish == Restart {
		p.Wish = Run
	}

	registered := a.Definition != nil && a.Definition.Registered
	switch {
	case p.Adopt && d.Leaves() && registered:
		p.Why = "it was deregistered"
	case p.Adopt && d.Leaves():
		p.Why = "its file was removed or disabled"
	case d.Wish.Halts():
		p.Why = "is being stopped on request"
	case starts:
		p.Why = "is being started on request"
	case p.Adopt && (registered || d.Change.Definition.Registered):
		p.Why = "its registration changed"
	case p.Adopt:
		p.Why = "its file changed"
	default:
		p.Why = "is being restarted on request"
	}

	return p
}

// Settle records that the worker has carried out a plan.
func (d *Desired) Settle(a *Actual, p Plan) {
	a.Settled = p.Wish
	if d.Wish == Restart {
		d.Wish = Run
	}
}
