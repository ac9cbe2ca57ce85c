package volume

import "fmt"

// PendingCalls says how the calls stand that a plugin is still to be told, and how to
// end them.
type PendingCalls struct {
	// How says when they are made, and how the last try went.
	How string
	// Failed is set once a try failed. GiveUp is then worth typing: it ends the calls.
	Failed bool
	GiveUp string
}

// givingUp is what comes of giving pending calls up.
const givingUp = "the plugin is then never told, and what it left mounted or attached stays so"

// PendingCalls describes the pending calls of a record by how the last step went. The
// record has some: see Debts, and Debt.
func (r Record) PendingCalls(at *Attempt, p PluginView) PendingCalls {
	c := PendingCalls{GiveUp: Command("volctl volume deregister %s --force --forget", r.Volume.ID)}
	next := (&planner{r: r, claims: r.Ordered()}).undoes()
	switch {
	case at != nil && at.Err != nil && !at.Action.Wanted():
		c.Failed = true
		c.How = fmt.Sprintf("the last try failed: %v; it is tried again. To end that: %s; %s", at.Err, c.GiveUp, givingUp)
	case !p.ReadyFor(next):
		c.How = fmt.Sprintf("the calls are made when plugin %q is ready. If it never is: %s; %s", r.Volume.PluginID, c.GiveUp, givingUp)
	case at != nil && at.Action.Kind == Wait && at.Action.Reason != "":
		c.How = "the calls are still to be made: " + at.Action.Reason
	default:
		c.How = "the calls are being made"
	}
	return c
}

// pendingCalls adds to an explanation how the calls stand that the plugin is still to be
// told: of the volume itself, or of a forced deregister of the same storage.
func (e Explanation) pendingCalls(r Record, o Observed, at *Attempt) Explanation {
	switch {
	case o.Debt != "" && o.Pending != nil:
		r, at = *o.Pending, o.PendingTry
	case o.Debt != "" || len(r.Debts()) == 0 || at == nil || !at.Action.Owed && at.Action.Kind != ControllerUnpublish && at.Action.Kind != Prove:
		return e
	}
	calls := r.PendingCalls(at, o.Plugin)
	if !calls.Failed {
		return e
	}
	note := calls.How
	if o.Debt != "" { // which tells how the last try failed
		note = fmt.Sprintf("to end the pending calls: %s; %s", calls.GiveUp, givingUp)
	}
	e.Notes = append(e.Notes, note)
	if e.Fix == "" {
		e.Fix = Command("volctl plugin logs %s", r.Volume.PluginID)
	}
	e.Else = calls.GiveUp
	return e
}
