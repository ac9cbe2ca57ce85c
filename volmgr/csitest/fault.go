package csitest

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// Effect is whether a call with a fault does what it is for.
type Effect string

// The effects.
const (
	// EffectAuto, the default: done if the answer is OK, else not.
	EffectAuto Effect = ""
	// EffectNone: not done, whatever the answer. With OK, success without effect.
	EffectNone Effect = "none"
	// EffectDone: done, whatever the answer. With an error, effect without success.
	EffectDone Effect = "done"
	// EffectLater: the answer comes at once and the effect after Delay, also if
	// the call was undone meanwhile. A plugin that is closed or killed before
	// that never does it.
	EffectLater Effect = "later"
)

// Moment is when in a call something dies.
type Moment string

// The moments.
const (
	Never        Moment = ""
	BeforeEffect Moment = "before"
	AfterEffect  Moment = "after" // and before the answer
)

// Fault is how one call goes wrong. A call with a fault takes these steps; a
// zero field leaves its step out.
//
//  1. Hang, then Delay, even past the caller's deadline: a plugin does not stop
//     working because nobody listens. They end early when the plugin is closed
//     (then there is no effect).
//  2. KillCaller and Crash at BeforeEffect.
//  3. The effect; see Effect.
//  4. KillCaller and Crash at AfterEffect.
//  5. The answer: Code and Message.
type Fault struct {
	// ID tells faults apart, also those in the past: how often one was used is
	// counted in the journal. Control.Add makes it.
	ID string `json:"id,omitempty"`
	// Method, Volume and Path (staging or target) are what it applies to. An
	// empty Method is every call that changes something; the others any.
	Method string `json:"method,omitempty"`
	Volume string `json:"volume,omitempty"`
	Path   string `json:"path,omitempty"`
	// Skip is how many such calls it lets pass first. Those, too, are counted in
	// the journal; one that an earlier fault was used for is not among them.
	Skip int `json:"skip,omitempty"`
	// Times is how many calls it applies to then: 0 is one, negative all.
	Times int `json:"times,omitempty"`

	// Hang lasts until the fault is removed from its Control.
	Hang  bool          `json:"hang,omitempty"`
	Delay time.Duration `json:"-"` // "delay" in JSON, as "1.5s"
	// Bounded ends the delay early when the caller gives up or dies: the effect then
	// comes within 9/10 of the deadline that the call had. A caller that waits for one
	// whole deadline after a call of unknown outcome is never surprised.
	Bounded bool `json:"bounded,omitempty"`
	// Outlives lets the effect of a ControllerPublish or ControllerUnpublish come even
	// if the plugin dies during the delay, as with storage that goes on by itself.
	Outlives bool `json:"outlives,omitempty"`
	// Crash ends the plugin: a child by SIGKILL to itself, one in process by
	// cutting its connections, without another word in the journal. Then its
	// Crashed channel is closed, and Close must still be called.
	Crash Moment `json:"crash,omitempty"`
	// KillCaller sends SIGKILL to the process at the other end of the socket
	// and waits until it is gone. A caller in the same process is spared: the
	// call fails.
	KillCaller Moment `json:"kill_caller,omitempty"`
	Effect     Effect `json:"effect,omitempty"`
	// Twist is how the effect differs from what it should be.
	Twist Twist `json:"twist,omitempty"`
	// IgnoreReadOnly publishes writable what should be read-only.
	IgnoreReadOnly bool `json:"ignore_read_only,omitempty"`

	// Code is the answer; in JSON a number or a name such as "UNAVAILABLE".
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// plainFault is a Fault without methods, so that its JSON does not recurse.
type plainFault Fault

type faultJSON struct {
	plainFault
	Delay string `json:"delay,omitempty"`
}

// MarshalJSON writes the delay in words.
func (f Fault) MarshalJSON() ([]byte, error) {
	j := faultJSON{plainFault: plainFault(f)}
	if f.Delay != 0 {
		j.Delay = f.Delay.String()
	}
	return json.Marshal(j)
}

// UnmarshalJSON refuses what it does not know: a fault that is misspelt would
// otherwise let a test pass.
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

// applies tells whether a fault is for a call.
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

// left tells whether a fault that was used so often applies once more.
func (f Fault) left(used int) bool { return f.Times < 0 || used < max(f.Times, 1) }
