package csitest

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// Effect says whether a call with a fault takes effect.
type Effect string

// These are the values of Effect.
const (
	// EffectAuto is the default. The call takes effect if the code of the answer is OK.
	EffectAuto Effect = ""

	// EffectNone means that the call never takes effect. If the code is OK, the call succeeds
	// although it has no effect.
	EffectNone Effect = "none"

	// EffectDone means that the call always takes effect. If the code is an error, the call fails
	// although it has taken effect.
	EffectDone Effect = "done"

	// EffectLater means that the plugin answers at once, and that the call takes effect after
	// Delay. It takes effect even if the caller has undone the call in the meantime. If the plugin
	// is closed or killed before the end of Delay, the call never takes effect.
	EffectLater Effect = "later"
)

// Moment is the point in a call at which a process dies.
type Moment string

// These are the values of Moment.
const (
	Never        Moment = ""
	BeforeEffect Moment = "before"
	AfterEffect  Moment = "after" // after the effect and before the answer
)

// Fault describes how a call fails. The plugin performs these steps for a call with a fault, and
// skips a step whose field is zero:
//
//  1. Hang, then Delay. They may exceed the caller's deadline, because a real plugin continues
//     without its caller. Both end early when the plugin is closed, and then the call has no effect.
//  2. KillCaller and Crash at BeforeEffect.
//  3. The effect; see Effect.
//  4. KillCaller and Crash at AfterEffect.
//  5. The answer: Code and Message.
type Fault struct {
	// ID identifies a fault. The journal shows how often each id was used, even after the fault has
	// been removed. Control.Add assigns an id.
	ID string `json:"id,omitempty"`

	// Method, Volume and Path select the calls to which the fault applies. Path is a staging path
	// or a target. An empty Method selects every call that changes something. An empty Volume or
	// Path selects all volumes or paths.
	Method string `json:"method,omitempty"`
	Volume string `json:"volume,omitempty"`
	Path   string `json:"path,omitempty"`

	// Skip is the number of selected calls to which the fault does not apply at first. The journal
	// also shows the skipped calls. A call to which an earlier fault applies does not count.
	Skip int `json:"skip,omitempty"`

	// Times is the number of calls to which the fault applies after the skipped calls. Zero means
	// one call, and a negative number means all calls.
	Times int `json:"times,omitempty"`

	// Hang makes the call hang until a test removes the fault from its Control.
	Hang  bool          `json:"hang,omitempty"`
	Delay time.Duration `json:"-"` // "delay" in JSON, for example "1.5s"

	// Bounded ends the delay early if the caller gives up or dies. The call then takes effect
	// within 9/10 of its own time limit, counted from that moment. After a call with an unknown
	// outcome, a caller that waits for the whole time limit is therefore safe.
	Bounded bool `json:"bounded,omitempty"`

	// Outlives makes a ControllerPublish or ControllerUnpublish take effect even if the plugin dies
	// during the delay. It simulates a storage system that continues without the plugin.
	Outlives bool `json:"outlives,omitempty"`

	// Crash ends the plugin without a further journal entry. A plugin in a child process sends
	// SIGKILL to its own process. A plugin in the process of the test breaks its connections and
	// closes its Crashed channel, and the test must still call Close.
	Crash Moment `json:"crash,omitempty"`

	// KillCaller sends SIGKILL to the process at the other end of the socket, and waits until that
	// process has ended. If the caller is in the process of the plugin, the call fails instead.
	KillCaller Moment `json:"kill_caller,omitempty"`
	Effect     Effect `json:"effect,omitempty"`

	// Twist changes the effect of the call or its answer.
	Twist Twist `json:"twist,omitempty"`

	// IgnoreReadOnly makes the plugin ignore the read-only flag of a publish.
	IgnoreReadOnly bool `json:"ignore_read_only,omitempty"`

	// Code is the gRPC code of the answer. In JSON, it is a number or a name such as "UNAVAILABLE".
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// plainFault is a Fault without its methods. Without this type, MarshalJSON would call itself.
type plainFault Fault

type faultJSON struct {
	plainFault
	Delay string `json:"delay,omitempty"`
}

// MarshalJSON encodes the delay as text.
func (f Fault) MarshalJSON() ([]byte, error) {
	j := faultJSON{plainFault: plainFault(f)}
	if f.Delay != 0 {
		j.Delay = f.Delay.String()
	}
	return json.Marshal(j)
}

// UnmarshalJSON decodes a fault and rejects unknown fields. Otherwise a misspelled field would have
// no effect, and a test could pass by mistake.
func (f *Fault) UnmarshalJSON(b []byte) error {
	var j faultJSON
	if err := strictJSON(b, &j); err != nil {
		return err
	}
	if j.Delay != "" {
		d, err := time.ParseDuration(j.Delay)
		if err != nil {
			return fmt.Errorf("cannot read the delay: %w", err)
		}

		j.plainFault.Delay = d
	}

	*f = Fault(j.plainFault)
	return f.valid()
}

func (f Fault) valid() error {
	moment := func(m Moment) bool { return m == Never || m == BeforeEffect || m == AfterEffect }
	switch {
	case !moment(f.Crash), !moment(f.KillCaller):
		return fmt.Errorf("a fault's moment is %q or %q", BeforeEffect, AfterEffect)
	case f.Effect != EffectAuto && f.Effect != EffectNone && f.Effect != EffectDone && f.Effect != EffectLater:
		return fmt.Errorf("a fault's effect must be empty, %q, %q or %q", EffectNone, EffectDone, EffectLater)
	case f.Effect == EffectLater && f.Delay <= 0:
		return fmt.Errorf("a fault's effect %q needs a delay", EffectLater)
	case f.Method != "" && !knownMethod(f.Method):
		return fmt.Errorf("the plugin does not have the method %q of a fault", f.Method)
	case f.Outlives && f.Method != ControllerPublish && f.Method != ControllerUnpublish:
		return fmt.Errorf("only %s and %s outlive the plugin, not %q", ControllerPublish, ControllerUnpublish, f.Method)
	case f.Skip < 0:
		return fmt.Errorf("a fault cannot skip %d calls", f.Skip)
	case f.Twist != Straight && twisted[f.Twist] == nil, f.Method != "" && !f.Twist.knows(f.Method):
		return fmt.Errorf("a fault's twist %q is not known to method %q", f.Twist, f.Method)
	}

	return nil
}

func knownMethod(m string) bool {
	_, ok := shapes[m]
	return ok
}

// applies reports whether the fault selects a call.
func (f Fault) applies(c Call) bool {
	switch {
	case f.Method == "" && !Mutates(c.Method), f.Method != "" && f.Method != c.Method, !f.Twist.knows(c.Method):
		return false
	case f.Volume != "" && f.Volume != c.Volume:
		return false
	default:
		return f.Path == "" || f.Path == c.StagingPath || f.Path == c.TargetPath
	}
}

// left reports whether the fault still applies after it was used the given number of times.
func (f Fault) left(used int) bool { return f.Times < 0 || used < max(f.Times, 1) }
