package volume

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// The steps that happen only on this host. The other steps are CSI calls, by their names.
const (
	Plan     call.Method = "plan"      // record that calls for one more side will be made
	Doubt    call.Method = "doubt"     // record that a mount is missing or broken, before it is made again
	Bind     call.Method = "bind"      // mount the target at Claim.At
	Unbind   call.Method = "unbind"    // remove that mount
	Own      call.Method = "own"       // give the volume's root the requested owner and mode
	Take     call.Method = "take"      // record that a claim is mounted, after its mounts waited for an expansion
	Unmount  call.Method = "unmount"   // unmount a target or the staging path without a call to the plugin
	Prove    call.Method = "prove"     // proof of unmount: nothing on the host uses the device
	EndWatch call.Method = "end-watch" // end the watches: no late mount appeared
	Free     call.Method = "free"      // delete a claim that has nothing left to undo
	Wait     call.Method = "wait"      // nothing can be done now; Reason says why
	Settled  call.Method = "settled"   // there is nothing to do
)

// Action is one step. Next decides it, an executor carries it out, and Apply records its outcome.
type Action struct {
	Kind  call.Method
	Alloc string // the claim that the step is for, if it is for one

	// Path is the staging path for a stage or unstage, and the target for a publish or unpublish.
	// It is the own directory for a bind or unbind, and any of these paths for a Doubt.
	Path string

	// How limits the means that an Unmount or Unbind may use.
	How Without

	// This field is set on a pending call.
	Pending bool

	// Dead marks the Doubt of a mount that exists and must be undone.
	Dead bool

	// NodeID is an argument of ControllerPublish and ControllerUnpublish.
	NodeID string

	// Sure marks a ControllerUnpublish after which no earlier ControllerPublish can still take
	// effect. If it succeeds, the volume is disconnected and stays so.
	Sure bool

	// Uses is the value that a Plan records.
	Uses Uses

	// Size is the size that an expansion must reach, in bytes.
	Size int64

	// Reason says why a Wait waits. Cause classifies that reason.
	Reason string
	Cause  Cause
}

// Cause classifies the reasons for which a volume waits.
type Cause string

// The causes of a Wait.
const (
	CauseHalted   Cause = "halted"  // the agent sends no call at all
	CausePlugin   Cause = "plugin"  // the plugin is not ready
	CauseBackoff  Cause = "backoff" // a step failed and is not due yet
	CauseForeign  Cause = "foreign" // a mount that no record explains is in the way
	CauseHung     Cause = "hung"    // a mount does not answer
	CauseWatch    Cause = "watch"   // a late effect may still come
	CauseLeftover Cause = "debt"    // pending calls of a forced deregister of the same storage come first
	CauseExpand   Cause = "expand"  // the volume must be expanded first
	CauseOwner    Cause = "owner"   // a claim's owner is gone, and the claim will be detached
	CauseDown     Cause = "down"    // this host is going down, and the volume is no longer mounted
	CauseInvalid  Cause = "invalid" // the record holds a state that this release does not know
)

// Key names the step for retries. A volume that fails at one step does not delay the steps that do
// not depend on it.
func (a Action) Key() string { return string(a.Kind) + "/" + a.Alloc }

// RPC reports whether the step is a call to the plugin.
func (a Action) RPC() bool {
	switch a.Kind {
	case call.ControllerPublish, call.NodeStage, call.NodePublish, call.NodeUnpublish, call.NodeUnstage, call.ControllerUnpublish, call.ControllerExpand, call.NodeExpand:
		return true
	default:
		return false
	}
}

// Forward reports whether the step makes something that another step undoes.
func (a Action) Forward() bool {
	return a.Kind == call.ControllerPublish || a.Kind == call.NodeStage || a.Kind == call.NodePublish || a.Kind == Bind
}

// Wanted reports whether wanted claims need the step: it makes something, or it completes a mount
// that was made.
func (a Action) Wanted() bool { return a.Forward() || a.Kind == Own }

// Outcome is the result of a step. The zero value is plain success.
type Outcome struct {
	Err *CallError

	// Unsent is set if the step failed before any call or change. The side that it should make or
	// undo is unchanged.
	Unsent bool

	// Warning is set if a step counts as done although the plugin reported a failure.
	Warning string

	// Mount is the mount at Action.Path after a forward step. It is nil if there is none.
	Mount *MountIdentity

	// Devices are the block devices found at Action.Path. Their numbers are valid in the boot Boot.
	Devices []Device
	Boot    string

	// Sight is the state of Action.Path after the step. It is nil if the path was not checked.
	Sight *Sight

	// PublishContext is part of ControllerPublishVolume's answer.
	PublishContext map[string]string

	// ReadOnly is set if ControllerPublishVolume connected the volume read-only.
	ReadOnly bool

	// Unseen is a mount that an Unmount or Unbind detached lazily, so it may still be in use.
	Unseen *Unseen

	// Capacity is the size that an expansion reached, in bytes; 0 is unknown. With NodeRequired,
	// NodeExpandVolume must follow.
	Capacity     int64
	NodeRequired bool

	// StageSuspect is set if a publish showed that the staging is broken.
	StageSuspect bool
}

// over reports whether the late effect that a watch expects can no longer happen.
func (o Observed) over(w Watch) bool {
	if w.Attachment {
		return o.AttachmentOver
	}
	return o.WatchOver
}

// Observed is the state of the host and the plugin at one moment. It is never stored.
type Observed struct {
	// Halt says why the agent makes no calls at all. It is empty if the agent may make them.
	Halt string

	// Down is set while this host goes down. The agent then removes mounts and stagings even if
	// claims want them, and makes nothing. The claims stay.
	Down bool

	// Boot is the boot id of the host.
	Boot   string
	Plugin PluginView

	// This field describes the pending calls of a forced deregister of the same storage, if there are
	// any.
	Leftover string

	// Pending is the record of these calls and PendingTry is the last attempt at one. Each is nil
	// if it is not known.
	Pending    *Record
	PendingTry *Attempt

	// AtWork says why the storage must not be changed yet. It is empty if it may be changed.
	AtWork string

	// Staging is the sight of the staging path. Targets and Binds hold the sights of all claims, by
	// alloc.
	Staging Sight
	Targets map[string]Sight
	Binds   map[string]Sight

	// Watched holds the sights of the watched paths, by path.
	Watched map[string]Sight

	// WatchOver is set once no call of unknown outcome can still have an effect on a mount.
	// AttachmentOver is set once none can still connect or disconnect the volume.
	WatchOver      bool
	AttachmentOver bool

	// Parked holds the Action.Key of each step that failed and whose retry is not due yet.
	Parked map[string]bool
}

// left reports whether a side is no longer as it was made, or must be undone.
func left(was, now Side) bool {
	return was == Present && now != Present || was != Failed && now == Failed
}

// Event describes one transition in words.
type Event struct {
	Type    string
	Volume  string
	Alloc   string
	Plugin  string
	Part    string // the plugin's part, if the plugin has several
	Step    string // the step that the event is about, if any: a Kind or an RPC
	Message string
}

// EventRefused is the type of the event for a claim that was not admitted. It is the only event
// that a caller can cause any number of times.
const EventRefused = "claim-refused"

type progressKey struct{}

// WithProgress returns a context in which a step can report its progress.
func WithProgress(ctx context.Context, tell func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress reports how far a step is, in words, to the function of WithProgress if there is one. A
// step calls it only as often as a person can read.
func Progress(ctx context.Context, words string) {
	if tell, ok := ctx.Value(progressKey{}).(func(string)); ok {
		tell(words)
	}
}

// Awaited is the error of a wait for a volume that did not succeed. At is the last attempt at the
// awaited step.
type Awaited struct {
	Err error
	At  Attempt
}

// Error implements error. It returns the message of Err.
func (a *Awaited) Error() string { return a.Err.Error() }

// Unwrap lets errors.As find both the reason and the failed call.
func (a *Awaited) Unwrap() []error {
	if a.At.Err == nil {
		return []error{a.Err}
	}
	return []error{a.Err, a.At.Err}
}

// expands reports whether the attempt was at a step of an expansion.
func (at *Attempt) expands() bool {
	return at != nil && (at.Action.Kind == call.ControllerExpand || at.Action.Kind == call.NodeExpand)
}

// Attempt is the current step of a volume and its history. It lives in memory only.
type Attempt struct {
	Action  Action
	Err     *CallError // the last failure, nil if none
	Tries   int
	First   time.Time // time of the first try in this row of failures
	Next    time.Time // time of the next try, or when a wait ends; zero: not by itself
	Running bool

	// Progress describes the progress of the running step. It is empty if that is unknown.
	Progress string
	Unsent   bool // the last failure came before any call or change
}

// failing reports whether the step fails in a way that needs a person's attention.
func (at *Attempt) failing() bool {
	return at != nil && at.Err != nil && (at.Err.Final() || at.Tries >= stuckAfter)
}

// unusable reports whether the plugin was asked to make the volume usable and failed.
func (at *Attempt) unusable() bool {
	if at == nil || at.Err == nil || at.Unsent || at.Err.Unsent {
		return false
	}
	return at.Action.Forward() || at.expands()
}
