package volume

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
)

// PendingCallState describes the state of a volume's pending calls and how to end them.
type PendingCallState struct {
	// How says when the agent makes the calls, and how the last try ended.
	How string
	// Failed is set once a try has failed. GiveUp is then a useful command: it ends the calls.
	Failed bool
	GiveUp remedy.Remedy
}

// givingUp describes the consequence of giving pending calls up.
const givingUp = "the plugin is then never told, and what it left mounted or attached stays so"

// PendingCallState describes the pending calls of a record, given the last attempt at a step. The
// caller has checked that the record has such calls.
func (r Record) PendingCallState(at *Attempt, p PluginView) PendingCallState {
	c := PendingCallState{GiveUp: remedy.Of(remedy.GiveUpCalls, r.Volume.ID)}
	next := (&planner{r: r, claims: r.Ordered()}).undoes()
	switch {
	case at != nil && at.Err != nil && !at.Action.Wanted():
		c.Failed = true
		c.How = fmt.Sprintf("the last try failed: %v; it is tried again. To end that: %s; %s", at.Err, suggest.Words(c.GiveUp), givingUp)
	case !p.ReadyFor(next):
		c.How = fmt.Sprintf("the calls are made when plugin %q is ready. If it never is: %s; %s", r.Volume.PluginID, suggest.Words(c.GiveUp), givingUp)
	case at != nil && at.Action.Kind == Wait && at.Action.Reason != "":
		c.How = "the calls are still to be made: " + at.Action.Reason
	default:
		c.How = "the calls are being made"
	}

	return c
}

// withPendingCalls adds the state of pending calls to an explanation. They are those of the volume
// itself, or those of a forced deregister of the same storage.
func (e Explanation) withPendingCalls(r Record, o Observed, at *Attempt) Explanation {
	switch {
	case o.Leftover != "" && o.Pending != nil:
		r, at = *o.Pending, o.PendingTry
	case o.Leftover != "" || len(r.PendingCalls()) == 0 || at == nil || !at.Action.Pending && at.Action.Kind != call.ControllerUnpublish && at.Action.Kind != Prove:
		return e
	}

	calls := r.PendingCallState(at, o.Plugin)
	if !calls.Failed {
		return e
	}

	note := calls.How
	if o.Leftover != "" { // the explanation has the error of the last try already
		note = fmt.Sprintf("to end the pending calls: %s; %s", suggest.Words(calls.GiveUp), givingUp)
	}

	e.Notes = append(e.Notes, note)
	if e.Fix.Empty() {
		e.Fix = remedy.Of(remedy.ShowPluginLog, r.Volume.PluginID)
	}

	e.Else = calls.GiveUp
	return e
}
