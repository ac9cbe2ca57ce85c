package csitest

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// Effect determines whether a call with a fault takes effect.
type Effect string

// These are the values of Effect.
const (
	// EffectAuto is the default: the call takes effect if the answer is OK.
	EffectAuto Effect = ""

	// EffectNone means that the call has no effect, regardless of the answer. With the code OK, the
	// call succeeds without an effect.
	EffectNone Effect = "none"

	// EffectDone means that the call takes effect, regardless of the answer. With an error code,
	// the call fails, but has an effect.
	EffectDone Effect = "done"

	// EffectLater means that the plugin answers at once, and that the call takes effect after
	// Delay. The effect happens even if the caller has undone the call in the meantime. If the
	// plugin is closed or killed before the end of Delay, the call never takes effect.
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
	// ID identifies a fault. The journal counts how often each id was used, even after the fault is
	// removed. Control.Add assigns an id.
	ID string `json:"id,omitempty"`

	// Method, Volume and Path (staging or target) select the calls to which the fault applies. An
	// empty Method selects every call that changes something. An empty Volume or Path selects all
	// volumes or paths.
	Method string `json:"method,omitempty"`
	Volume string `json:"volume,omitempty"`
	Path   string `json:"path,omitempty"`

	// Skip is the number of selected calls that the fault skips first. The journal counts the
	// skipped calls too. A call to which an earlier fault applies does not count.
	Skip int `json:"skip,omitempty"`

	// Times is the number of calls to which the fault applies after the skipped calls. Zero means
	// one, and a negative number means all.
	Times int `json:"times,omitempty"`

	// Hang makes the call hang until the fault is removed from its Control.
	Hang  bool          `json:"hang,omitempty"`
	Delay time.Duration `json:"-"` // "delay" in JSON, such as "1.5s"

	// Bounded ends the delay early when the caller gives up or dies. From that moment, the call
	// takes effect within 9/10 of its time limit. A caller that waits for the whole time limit
	// after a call with an unknown outcome is therefore safe.
	Bounded bool `json:"bounded,omitempty"`

	// Outlives makes a ControllerPublish or ControllerUnpublish take effect even if the plugin dies
	// during the delay. It simulates a storage system that continues without the plugin.
	Outlives bool `json:"outlives,omitempty"`

	// Crash ends the plugin without writing another journal entry. A plugin in a child process
	// sends SIGKILL to itself. A plugin in the test's process cuts its connections and closes its
	// Crashed channel. The test must still call Close for that plugin.
	Crash Moment `json:"crash,omitempty"`

	// KillCaller sends SIGKILL to the process at the other end of the socket, and waits until the
	// process is gone. If the caller is in the plugin's own process, the call fails instead.
	KillCaller Moment `json:"kill_caller,omitempty"`
	Effect     Effect `json:"effect,omitempty"`

	// Twist makes the effect differ from the normal effect.
	Twist Twist `json:"twist,omitempty"`

	// IgnoreReadOnly makes a read-only publish writable.
	IgnoreReadOnly bool `json:"ignore_read_only,omitempty"`

	// Code is the code of the answer. In JSON it is a number or a name such as "UNAVAILABLE".
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// plainFault is a Fault without methods. Without this type, MarshalJSON would call itself.
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

// UnmarshalJSON decodes a fault and rejects unknown fields. Otherwise a misspelled fault would have
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

// applies reports whether a fault selects a call.
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

// left reports whether a fault that was used the given number of times still applies.
func (f Fault) left(used int) bool { return f.Times < 0 || used < max(f.Times, 1) }
