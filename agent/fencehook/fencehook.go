// Package fencehook switches a host off through fence hooks, and asks them whether it is off. A fence
// hook is an executable of the operator, or a file that configures an agent of the project fence-agents.
//
//	Off:  off ──▶ exit 0 ──▶ status ──▶ off ──▶ proven
//	       │                  │  ▲
//	       │                  ▼  │ on or unknown, until Limits.Settle has passed
//	       │                  └──┘
//	       ├──▶ exit 3: the hook is not for this host ──▶ next hook
//	       └──▶ any other end ──▶ next hook
//
// The package knows nothing of clusters. Its caller decides when a host may be switched off, and
// records the proof.
package fencehook

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode"
)

// DefaultDir is the directory that contains the fence hooks.
const DefaultDir = "/etc/volagent/fence.d"

// Limits are the time limits of hooks. A field that is 0 gets its default.
type Limits struct {
	Off    time.Duration // of one call with the action off, 60 s by default
	On     time.Duration // of one call with the action on, 60 s by default
	Status time.Duration // of one call with the action status, 20 s by default
	Settle time.Duration // the time in which a host must go off after the call, 60 s by default
	Poll   time.Duration // the pause between two calls with the action status, 1 s by default
}

// or returns the limits, with the defaults for fields that are 0.
func (l Limits) or(defaults Limits) Limits {
	return Limits{
		Off:    cmp.Or(l.Off, defaults.Off),
		On:     cmp.Or(l.On, defaults.On),
		Status: cmp.Or(l.Status, defaults.Status),
		Settle: cmp.Or(l.Settle, defaults.Settle),
		Poll:   cmp.Or(l.Poll, defaults.Poll),
	}
}

var defaultLimits = Limits{
	Off: time.Minute, On: time.Minute, Status: 20 * time.Second, Settle: time.Minute, Poll: time.Second,
}

// of returns the limit of one call.
func (l Limits) of(action Action) time.Duration {
	switch action {
	case ActionOff:
		return l.Off
	case ActionOn:
		return l.On
	default:
		return l.Status
	}
}

// Action is a task for a hook. Executables get it as their first argument.
type Action string

// These are the actions.
const (
	ActionOff    Action = "off"
	ActionOn     Action = "on"
	ActionStatus Action = "status"
)

// Power is the state of a host, as a hook reports it.
type Power string

// These are the states of a host. A host that a network fence has cut off counts as off.
const (
	PowerOn      Power = "on"
	PowerOff     Power = "off"
	PowerUnknown Power = "unknown"
)

// Target is a host that hooks switch off or on.
type Target struct {
	Host      string // the name of the host
	MachineID string // its /etc/machine-id, if known
	DMIUUID   string // the UUID of its firmware, if known
	Reason    string // why this happens, for the logs of the hook
	Hook      string // calls only the hook with this name; empty: all hooks
}

// maxHost is the maximum length of a host name, in bytes.
const maxHost = 253

// checkHost returns an error if a hook cannot get the name of a host. The name is an argument of
// executables, and a line of the input of fence agents.
func checkHost(host string) error {
	switch {
	case host == "":
		return fmt.Errorf("the host has no name")
	case len(host) > maxHost:
		return fmt.Errorf("the name of the host has %d bytes, more than %d", len(host), maxHost)
	case strings.HasPrefix(host, "-"):
		return fmt.Errorf("host name %q begins with a hyphen; a hook would take it for an option", host)
	case strings.ContainsFunc(host, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }):
		return fmt.Errorf("host name %q contains a space or a control character", host)
	default:
		return nil
	}
}

// Call is one call of a hook that has ended.
type Call struct {
	Hook   string
	Action Action
	Said   string // the meaning of the exit status, for people
	// Output is the last part of the output of the hook. It contains neither secrets nor control
	// characters except newlines and tabs.
	Output string
	Took   time.Duration
}

// Result describes the effect of hooks on a host.
type Result struct {
	// Hook is the hook that the result is about: the last one that serves the host. It is empty if
	// no hook serves the host.
	Hook string
	// Started is true if Off or On has started a hook that serves the host. From this moment, the
	// host may be off (or on), even if nothing is proven. A hook that reports that it does not serve
	// the host has changed nothing, so it does not count.
	Started bool
	// Proven is true if Off has switched the host off, and status confirms it. It is the only proof
	// that the host cannot write.
	Proven bool
	// Done is true if the action has succeeded. After Off, Done equals Proven. On needs the success of
	// every hook that serves the host. Status needs one hook that knows the state.
	Done bool
	// Power is the state that status reported. It is empty if no hook that serves the host was asked.
	Power Power
	// Reason explains the result to people, in one line.
	Reason string
	// Calls contains each call of a hook that serves the host. Of the calls with the action status
	// that follow an Off, it contains only the last one.
	Calls []Call
}

// Output returns the output of all calls, for logs and events. Each line begins with the hook.
func (r Result) Output() string {
	var b strings.Builder
	for _, c := range r.Calls {
		for line := range strings.Lines(c.Output) {
			fmt.Fprintf(&b, "%s %s: %s\n", c.Hook, c.Action, strings.TrimRight(line, "\n"))
		}
	}
	return b.String()
}

// Hooks calls the fence hooks of one directory.
type Hooks struct {
	dir    string
	limits Limits
	trust  trust
}

// New returns the hooks in a directory. Each call reads the directory again. An empty dir stands for
// DefaultDir.
func New(dir string, limits Limits) *Hooks {
	return &Hooks{dir: cmp.Or(dir, DefaultDir), limits: limits.or(defaultLimits)}
}

// Off switches a host off. It calls one hook after the other, until a hook has switched the host off
// and its status confirms this. A host that is already off is switched off again, because a status
// alone is no proof: the host could start at the next moment.
func (h *Hooks) Off(ctx context.Context, t Target) Result {
	r := h.round(t)
	for hook := range r.each(ctx) {
		if r.off(ctx, hook) {
			r.Proven, r.Done = true, true
			return r.end("hook %q has switched host %q off, and its status confirms it", hook.Name, t.Host)
		}
	}
	return r.fail("cannot prove that host %q is off", t.Host)
}

// On ends the effect of Off. It calls every hook that serves the host, because several hooks may have
// acted on the host.
func (h *Hooks) On(ctx context.Context, t Target) Result {
	r := h.round(t)
	for hook := range r.each(ctx) {
		if got := r.call(ctx, hook, ActionOn); got.answer == failed {
			r.problem("hook %q: %s", hook.Name, got.said)
		}
	}

	if len(r.problems) > 0 {
		return r.fail("cannot switch host %q on", t.Host)
	}
	r.Done = true
	return r.end("%s", strings.Join(append([]string{fmt.Sprintf("host %q is switched on", t.Host)}, r.refused...), "; "))
}

// Status asks every hook that serves the host for its state, and changes nothing. The host counts as
// off if one hook says so. This is no proof that the host cannot write, because nothing keeps the host
// off.
func (h *Hooks) Status(ctx context.Context, t Target) Result {
	r := h.round(t)
	power := map[Power]bool{}
	for hook := range r.each(ctx) {
		got := r.call(ctx, hook, ActionStatus)
		if got.answer == unknown {
			r.problem("hook %q: %s", hook.Name, got.said)
		}
		power[r.Power] = true
	}

	switch {
	case power[PowerOff]:
		r.Power = PowerOff
	case power[PowerOn]:
		r.Power = PowerOn
	default:
		return r.fail("cannot find out whether host %q is off", t.Host)
	}
	r.Done = true
	return r.end("the status of host %q is %s", t.Host, r.Power)
}

// round is one request: its hooks, and its result so far.
type round struct {
	Result
	dir      string
	target   Target
	limits   Limits
	hooks    []Hook
	refused  []string // the hooks that may serve the host, but are not used, for people
	problems []string // why the request fails, for people
}

// round finds the hooks that the request may call.
func (h *Hooks) round(t Target) *round {
	r := &round{dir: h.dir, target: t, limits: h.limits}
	if err := checkHost(t.Host); err != nil {
		r.problem("%s", err)
		return r
	}

	all, err := h.Find()
	if err != nil {
		r.problem("%s", err)
		return r
	}

	for _, hook := range all {
		if t.Hook != "" && t.Hook != hook.Name {
			continue
		}
		if hook.Refused != nil {
			r.refused = append(r.refused, fmt.Sprintf("hook %q is not used: %s", hook.Name, hook.Refused))
			continue
		}
		if hook.mayServe(t.Host) {
			r.hooks = append(r.hooks, hook)
		}
	}

	if len(r.hooks) == 0 {
		r.problem("%s", r.noHook())
	}
	return r
}

// noHook explains that no hook serves the host.
func (r *round) noHook() string {
	if r.target.Hook != "" {
		return fmt.Sprintf("no hook with the name %q in %s serves this host", r.target.Hook, r.dir)
	}
	return fmt.Sprintf("no fence hook in %s serves this host", r.dir)
}

// each returns the hooks one after the other, until the context ends. It adds a problem if that
// happens, or if all hooks report that they do not serve the host.
func (r *round) each(ctx context.Context) iter.Seq[Hook] {
	return func(yield func(Hook) bool) {
		for _, hook := range r.hooks {
			if ctx.Err() != nil {
				r.problem("%s", cancelled(ctx))
				return
			}
			if !yield(hook) {
				return
			}
		}
		if len(r.hooks) > 0 && r.Hook == "" {
			r.problem("%s", r.noHook())
		}
	}
}

// problem adds a reason why the request fails.
func (r *round) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// end returns the result of a request, with a reason.
func (r *round) end(format string, args ...any) Result {
	r.Reason = fmt.Sprintf(format, args...)
	return r.Result
}

// fail returns the result of a request that has failed, with its problems.
func (r *round) fail(format string, args ...any) Result {
	return r.end("%s: %s", fmt.Sprintf(format, args...), strings.Join(append(r.problems, r.refused...), "; "))
}

// off switches the host off through one hook, and reports whether status has confirmed it.
func (r *round) off(ctx context.Context, hook Hook) bool {
	got := r.call(ctx, hook, ActionOff)
	if got.answer == notMine {
		return false
	}
	if got.answer != done {
		r.problem("hook %q: %s", hook.Name, got.said)
		return false
	}

	began := time.Now()
	for {
		got = r.call(ctx, hook, ActionStatus)
		if got.answer == isOff {
			return true
		}
		if time.Since(began)+r.limits.Poll > r.limits.Settle || !pause(ctx, r.limits.Poll) {
			break
		}
	}

	r.problem("hook %q: off succeeded, but %s later %s", hook.Name, time.Since(began).Round(time.Second/10), got.said)
	return false
}

// pause waits, and reports whether the context is still alive afterwards.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// call calls one hook, and adds the call to the result if the hook serves the host.
func (r *round) call(ctx context.Context, hook Hook, action Action) decision {
	began := time.Now()
	p, err := hook.program(action, r.target)
	e := ending{failure: err}
	if err == nil {
		e = run(ctx, p, r.limits.of(action))
	}

	got := decide(hook.Kind, action, e)
	if got.answer == notMine {
		return got
	}

	r.Hook = hook.Name
	r.Started = r.Started || action != ActionStatus && e.started
	if action == ActionStatus {
		r.Power = got.answer.power()
	}

	made := Call{Hook: hook.Name, Action: action, Said: got.said, Output: e.output, Took: time.Since(began)}
	if n := len(r.Calls); n > 0 && action == ActionStatus && r.Calls[n-1].Hook == hook.Name && r.Calls[n-1].Action == action {
		r.Calls = r.Calls[:n-1]
	}
	r.Calls = append(r.Calls, made)
	return got
}
