package plugins

import (
	"context"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
)

// Provisioner returns a client for the calls that create, delete and snapshot volumes.
func (p Set) Provisioner(id string) (call.Caller, error) { return &router{plugins: p, id: id}, nil }

// Reporter returns a client for one request about existing volumes. It sends all calls that only
// ask for information to the same controller, because the pages of a listing belong together.
func (p Set) Reporter(id string) (call.Caller, error) {
	return &router{plugins: p, id: id, keep: true}, nil
}

// router sends each call to the part of a plugin that must answer the call.
type router struct {
	plugins Set
	id      string

	// If keep is set, all calls that concern no particular volume or snapshot go to the same
	// controller, which one contains.
	keep bool
	one  *supervisor.Controller
}

// Call implements call.Caller.
func (r *router) Call(ctx context.Context, m call.Method, request any) (any, error) {
	if m.Service() == call.Node {
		c, err := r.plugins.Client(r.id)
		if err != nil {
			return nil, err
		}

		return c.Call(ctx, m, request)
	}

	c, err := r.controller(m.Subject(request))
	if err != nil {
		return nil, err
	}

	return controller{c}.Call(ctx, m, request)
}

// controller chooses the controller for a call that concerns the given volume or snapshot. If such
// a call was abandoned, the next call with the same subject goes to the same controller.
func (r *router) controller(subject string) (supervisor.Controller, error) {
	if subject != "" || !r.keep {
		return r.plugins.Controller(r.id, subject)
	}

	if r.one == nil {
		c, err := r.plugins.Controller(r.id, "")
		if err != nil {
			return c, err
		}
		r.one = &c
	}

	return *r.one, nil
}

// controller reports the results of calls that concern a particular volume or snapshot to the
// supervisor. Any other call changes nothing, so it can have no late effect.
type controller struct{ supervisor.Controller }

// Call implements call.Caller.
func (c controller) Call(ctx context.Context, m call.Method, request any) (any, error) {
	answer, err := c.Controller.Call(ctx, m, request)
	if m.Subject(request) != "" {
		c.Done(err)
	}

	return answer, err
}
