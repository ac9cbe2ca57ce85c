package csitest

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// Effect says whether a call with a fault has its effect.
type Effect string

// The effects.
const (
	// EffectAuto is the default: the effect happens if the answer is OK.
	EffectAuto Effect = ""

	// EffectNone: no effect, regardless of the answer. With OK, this is success without effect.
	EffectNone Effect = "none"

	// EffectDone: the effect happens, regardless of the answer. With an error, this is effect
	// without success.
	EffectDone Effect = "done"

	// EffectLater: the answer comes at once and the effect after Delay, even if the call was undone
	// in the meantime. If the plugin is closed or killed before, the effect never happens.
	EffectLater Effect = "later"
)

// Moment is the point in a call at which a process dies.
type Moment string

// The moments.
const (
	Never        Moment = ""
	BeforeEffect Moment = "before"
	AfterEffect  Moment = "after" // after the effect and before the answer
)

// Fault describes how one call fails. A call with a fault takes these steps; a zero field skips its
// step.
//
//  1. Hang, then Delay, even past the caller's deadline, because a plugin continues without its
//     caller. Both end early when the plugin is closed, and then there is no effect.
//  2. KillCaller and Crash at BeforeEffect.
//  3. The effect; see Effect.
//  4. KillCaller and Crash at AfterEffect.
//  5. The answer: Code and Message.
type Fault struct {
	// ID identifies a fault, even after its removal: the journal counts how often it was used.
	// Control.Add makes the id.
	ID string `json:"id,omitempty"`

	// Method, Volume and Path (staging or target) select the calls to which it applies. An empty
	// Method selects every call that changes something. An empty Volume or Path selects any.
	Method string `json:"method,omitempty"`
	Volume string `json:"volume,omitempty"`
	Path   string `json:"path,omitempty"`

	// Skip is the number of such calls that it lets pass first. The journal counts these too. A
	// call for which an earlier fault was used does not count.
	Skip int `json:"skip,omitempty"`

	// Times is the number of calls to which it then applies: 0 means one, negative means all.
	Times int `json:"times,omitempty"`

	// Hang lasts until the fault is removed from its Control.
	Hang  bool          `json:"hang,omitempty"`
	Delay time.Duration `json:"-"` // "delay" in JSON, as "1.5s"

	// Bounded ends the delay early when the caller gives up or dies. The effect then happens within
	// 9/10 of the call's deadline. It never surprises a caller that waits a whole deadline after a
	// call of unknown outcome.
	Bounded bool `json:"bounded,omitempty"`

	// Outlives makes the effect of a ControllerPublish or ControllerUnpublish happen even if the
	// plugin dies during the delay, as with a storage system that continues by itself.
	Outlives bool `json:"outlives,omitempty"`

	// Crash ends the plugin without another entry in the journal. A child sends SIGKILL to itself.
	// A plugin in the test's process cuts its connections and closes its Crashed channel; the test
	// must still call Close.
	Crash Moment `json:"crash,omitempty"`

	// KillCaller sends SIGKILL to the process at the other end of the socket and waits until it is
	// gone. A caller in the same process is not killed; instead the call fails.
	KillCaller Moment `json:"kill_caller,omitempty"`
	Effect     Effect `json:"effect,omitempty"`

	// Twist changes the effect from the normal one.
	Twist Twist `json:"twist,omitempty"`

	// IgnoreReadOnly publishes a read-only request writable.
	IgnoreReadOnly bool `json:"ignore_read_only,omitempty"`

	// Code is the code of the answer. In JSON it is a number or a name such as "UNAVAILABLE".
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// plainFault is a Fault without methods, so that its JSON does not recurse.
type plainFault Fault

type faultJSON struct {
	plainFault
	Delay string `json:"delay,omitempty"`
}

// MarshalJSON writes the delay as text.
func (f Fault) MarshalJSON() ([]byte, error) {
	j := faultJSON{plainFault: plainFault(f)}
	if f.Delay != 0 {
		j.Delay = f.Delay.String()
	}
	return json.Marshal(j)
}

// UnmarshalJSON refuses unknown fields, because a misspelled fault would otherwise let a test pass.
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
		return fmt.Errorf("a fault's effect is %q, %q, %q or none given", EffectNone, EffectDone, EffectLater)
	case f.Effect == EffectLater && f.Delay <= 0:
		return fmt.Errorf("a fault's effect %q needs a delay", EffectLater)
	case f.Method != "" && !knownMethod(f.Method):
		return fmt.Errorf("a fault's method %q is none of the plugin's", f.Method)
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

// applies reports whether a fault is for a call.
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

// left reports whether a fault that was used this many times applies once more.
func (f Fault) left(used int) bool { return f.Times < 0 || used < max(f.Times, 1) }
