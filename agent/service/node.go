package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Drainer drains the host of all volumes, and ends a drain.
type Drainer interface {
	Drain(ctx context.Context, wait time.Duration) (volume.Occupancy, error)
	Undrain(ctx context.Context) (changed bool, err error)
	Look(ctx context.Context) volume.Occupancy
}

// Node answers requests about the host as a whole.
type Node struct {
	view
	node    func() api.Node
	drainer Drainer
	set     PluginSet
}

// Health returns the problems of the agent itself.
func (n Node) Health() api.Health {
	got := n.node()
	h := api.Health{Status: api.OK, Version: api.Version, DB: got.DB}
	for _, p := range got.Problems {
		if p.Subject == api.SubjectAgent {
			h.Problems = append(h.Problems, p.Message)
		}
	}

	return h
}

// Status describes the host with its plugins, its volumes and all problems.
func (n Node) Status(ctx context.Context, by Caller) api.Node {
	out := n.node()
	out.Plugins = visible(by, n.set.List()...)
	if out.Draining {
		out.Drain = toDrain(n.drainer.Look(ctx))
	}
	if out.State != api.OK {
		out.Problems = append(out.Problems, api.Problem{Subject: api.SubjectAgent, Message: out.State})
	}
	down := map[string]bool{}
	for _, p := range out.Plugins {
		down[p.ID] = n.ailing(p) && p.State != api.PluginReady // a ready plugin serves calls despite a failed part
	}

	for _, v := range n.describeAll(ctx) {
		out.Volumes++
		out.Claims += len(v.Claims)
		ill := v.Report != nil && len(v.Report.Health) > 0
		if ill {
			out.Problems = append(out.Problems, healthProblem(v))
		}
		switch v.State {
		case api.StateFree:
			out.Free++
		case api.StateMounted:
			out.Mounted++
		case api.StateStuck, api.StateDegraded:
			out.Problems = append(out.Problems, volumeProblem(v))
			continue
		}

		// A mounted volume works without its plugin and without the agent. Mounting a volume needs
		// both.
		mountable := !down[v.Spec.PluginID] && out.State == api.OK
		works := v.State == api.StateMounted || mountable
		if works && !ill {
			out.Unaffected++
		}
	}

	for _, p := range out.Plugins {
		if n.ailing(p) {
			out.Problems = append(out.Problems, pluginProblem(p))
		}
	}

	if out.Problems == nil {
		out.Problems = []api.Problem{}
	}
	return out
}

// ailing reports whether a plugin has a problem that a person must solve. A plugin that was stopped
// on purpose is a problem only if volumes need it. The first start of a plugin is not a problem. A
// restart is a problem, because a plugin that never becomes ready is in the state "starting" most
// of the time.
func (n Node) ailing(p api.Plugin) bool {
	switch p.State {
	case api.PluginReady:
		return ailingPart(p) != nil
	case api.PluginStarting:
		return p.Restarts > 0
	case api.PluginDisabled:
		return p.Staged > 0
	case api.PluginStopped:
		return p.Staged > 0 && n.plugins.View(p.ID).Stopped
	default:
		return true
	}
}

// ailingPart returns a part with a problem that an operator must solve, or nil. The plugin may
// still be ready if another part serves its calls.
func ailingPart(p api.Plugin) *api.PluginPart {
	for i, part := range p.Parts {
		switch part.State {
		case api.PluginReady, api.PluginStopped, api.PluginDisabled:
		case api.PluginStarting:
			if part.Restarts > 0 {
				return &p.Parts[i]
			}
		default:
			return &p.Parts[i]
		}
	}

	return nil
}

// volumeProblem describes the problem of a volume in one line.
func volumeProblem(v api.Volume) api.Problem {
	p := api.Problem{Subject: v.Spec.ID, State: v.State, Message: strings.TrimPrefix(v.Summary, v.State+": "), Command: suggest.Command("volctl volume status %s", v.Spec.ID)}
	at := v.Attempt
	if at == nil {
		return p
	}

	p.Since = at.First
	switch {
	case len(at.HeldBy) > 0:
		p.Message += ", busy: " + at.HeldBy[0]
	case at.Code != "":
		p.Message += ", " + at.Step + ": " + at.Code
	}

	return p
}

// healthProblem describes a problem that the plugin last reported about a volume. The volume's
// state does not show such a problem, because the problem does not affect the claims.
func healthProblem(v api.Volume) api.Problem {
	f := v.Report.Health[0]
	words := "its plugin's " + f.By + " reports it"
	for _, part := range []string{f.Reason, f.Message} {
		if part != "" {
			words += ": " + part
		}
	}

	if more := len(v.Report.Health) - 1; more > 0 {
		words += fmt.Sprintf(", and %d more", more)
	}
	return api.Problem{
		Subject: v.Spec.ID, State: f.Severity, Since: v.Report.CheckedAt[f.By], Message: words,
		Command: suggest.Command("volctl volume status %s", v.Spec.ID),
	}
}

// pluginProblem describes the problem of a plugin in one line.
func pluginProblem(p api.Plugin) api.Problem {
	out := api.Problem{Subject: p.ID, State: strings.ReplaceAll(p.State, "-", " "), Since: p.Since, Message: p.Reason, Command: suggest.Command("volctl plugin logs %s", p.ID)}
	if part := ailingPart(p); part != nil && p.State == api.PluginReady {
		out.State, out.Since = strings.ReplaceAll(part.State, "-", " ")+" in part", part.Since
	}
	switch {
	case p.State == api.PluginStopped:
		out.Message, out.Command = "on request, and volumes need it", suggest.Command("volctl plugin start %s", p.ID)
	case p.State == api.PluginDisabled:
		out.Message, out.Command = p.Reason+", and volumes need it", suggest.Command("volctl plugin enable %s", p.ID)
	case p.LogFile == "" && len(p.Parts) < 2 || p.State == api.PluginFailed:
		out.Command = suggest.Command("volctl plugin status %s", p.ID)
	}

	switch {
	case p.Restarts == 1:
		out.Message += ", 1 restart"
	case p.Restarts > 1:
		out.Message += fmt.Sprintf(", %d restarts", p.Restarts)
	}

	if next := time.Until(p.Next).Round(time.Second); next > 0 {
		out.Message += fmt.Sprintf(", next in %s", next)
	}
	return out
}

// Drain removes all volumes from the host, and waits until no volume is in use, for at most the
// duration wait. If wait is 0, it does not wait.
func (n Node) Drain(ctx context.Context, by Caller, wait time.Duration) (*api.Drain, error) {
	if err := by.CheckWrite(); err != nil {
		return nil, err
	}
	left, err := n.drainer.Drain(ctx, wait)
	return toDrain(left), asAPI(err)
}

// Undrain ends a drain.
func (n Node) Undrain(ctx context.Context, by Caller) (api.Undrained, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Undrained{}, err
	}
	changed, err := n.drainer.Undrain(ctx)
	return api.Undrained{WasDraining: changed}, asAPI(err)
}

func toDrain(o volume.Occupancy) *api.Drain {
	return &api.Drain{Safe: o.Empty(), Waiting: toOccupants(o.Waiting), Left: toOccupants(o.Left)}
}

func toOccupants(list []volume.Occupant) []api.Occupant {
	out := make([]api.Occupant, len(list))
	for i, o := range list {
		out[i] = api.Occupant{
			Volume: o.Volume, Alloc: o.Alloc, Owner: o.Owner, Message: o.Message, Command: suggest.Words(o.Command), Else: suggest.Words(o.Else),
		}
	}
	return out
}
