package volume

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// These steps happen only on this host. All other steps are CSI calls and have the names of those
// calls.
const (
	Plan     call.Method = "plan"      // record that calls for one more side will be made
	Doubt    call.Method = "doubt"     // record that a mount is missing or broken, before the agent makes it again
	Bind     call.Method = "bind"      // mount the target at Claim.At
	Unbind   call.Method = "unbind"    // remove that mount
	Own      call.Method = "own"       // give the volume's root the requested owner and mode
	Take     call.Method = "take"      // record that a claim is mounted after its mounts waited for an expansion
	Unmount  call.Method = "unmount"   // unmount a target or the staging path without a call to the plugin
	Prove    call.Method = "prove"     // proof of unmount: nothing on the host uses the device
	EndWatch call.Method = "end-watch" // end the watches: no late mount appeared
	Free     call.Method = "free"      // delete a claim that has nothing left to undo
	Wait     call.Method = "wait"      // nothing can be done now; Reason says why
	Settled  call.Method = "settled"   // the volume needs no step
)

// Action is one step. Next decides it, an executor carries it out, and Apply records its outcome.
type Action struct {
	Kind  call.Method
	Alloc string // the claim that the step serves; empty for a step of the volume

	// Path is the staging path for a stage or unstage, and the target for a publish or unpublish.
	// For a bind or unbind, it is the own directory. For a Doubt, it can be any of these paths.
	Path string

	// How selects the means that an Unmount or Unbind may use.
	How Without

	// Pending is set if the step makes a pending call.
	Pending bool

	// Dead is set on a Doubt about a mount that exists but no longer works and must be undone.
	Dead bool

	// NodeID is an argument of ControllerPublish and ControllerUnpublish.
	NodeID string

	// Sure is set on a ControllerUnpublish that no late ControllerPublish can reverse. If the call
	// succeeds, the volume stays disconnected.
	Sure bool

	// Uses holds the sides that a Plan stores as its intent.
	Uses Uses

	// Size is the size that an expansion must reach, in bytes.
	Size int64

	// Reason explains why a Wait waits. Cause is the class of that reason.
	Reason string
	Cause  Cause
}

// Cause is the class of the reason why a volume waits.
type Cause string

// These are the causes of a Wait.
const (
	CauseHalted   Cause = "halted"  // the agent sends no call at all
	CausePlugin   Cause = "plugin"  // the plugin is not ready
	CauseBackoff  Cause = "backoff" // a step failed and its retry is not due yet
	CauseForeign  Cause = "foreign" // a mount that no record explains is in the way
	CauseHung     Cause = "hung"    // a mount does not answer
	CauseWatch    Cause = "watch"   // an earlier call may still have a late effect
	CauseLeftover Cause = "debt"    // the pending calls of a forced deregister of the same storage must be made before
	CauseExpand   Cause = "expand"  // the volume must be expanded first
	CauseOwner    Cause = "owner"   // the owner of a claim has ended, and the agent will detach the claim
	CauseDown     Cause = "down"    // this host is going down, and the volume is no longer mounted
	CauseInvalid  Cause = "invalid" // the record holds a state that this release does not know
)

// Key returns the name of the step for its retries. After a failed step, the agent continues with
// the steps that do not depend on it.
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

// Forward reports whether the step makes a side, which another step undoes.
func (a Action) Forward() bool {
	return a.Kind == call.ControllerPublish || a.Kind == call.NodeStage || a.Kind == call.NodePublish || a.Kind == Bind
}

// Wanted reports whether the step serves a wanted claim: it makes a mount, or it completes one.
func (a Action) Wanted() bool { return a.Forward() || a.Kind == Own }

// Outcome is the result of a step. The zero value is plain success.
type Outcome struct {
	Err *CallError

	// Unsent is set if the step failed before it sent a call or changed the host. The side is then
	// in its earlier state.
	Unsent bool

	// Warning is set if a step counts as done although the plugin reported a failure.
	Warning string

	// Mount is the mount at Action.Path after a forward step. It is nil if there is none.
	Mount *MountIdentity

	// Devices holds the block devices found at Action.Path. Device numbers are valid only in the
	// boot Boot.
	Devices []Device
	Boot    string

	// Sight is the state of Action.Path after the step. It is nil if the path was not checked.
	Sight *Sight

	// PublishContext is the publish context that ControllerPublishVolume returned.
	PublishContext map[string]string

	// ReadOnly is set if ControllerPublishVolume connected the volume read-only.
	ReadOnly bool

	// Unseen is a mount that the step detached lazily. Processes may still use it.
	Unseen *Unseen

	// Capacity is the size that an expansion reached, in bytes. Zero means unknown. NodeRequired is
	// set if NodeExpandVolume must follow.
	Capacity     int64
	NodeRequired bool

	// StageSuspect is set if a publish showed that the staging is broken.
	StageSuspect bool
}

// over reports whether the late effect of a watch has become impossible.
func (o Observed) over(w Watch) bool {
	if w.Attachment {
		return o.AttachmentOver
	}
	return o.WatchOver
}

// Observed is the state of the host and the plugin at one moment. The agent never stores it.
type Observed struct {
	// Halt says why the agent sends no calls at all. It is empty if the agent may send calls.
	Halt string

	// Down is set while this host goes down. The agent then removes mounts and stagings and makes
	// no new ones. The claims themselves stay.
	Down bool

	// Boot is the boot id of the host.
	Boot   string
	Plugin plugin.View

	// Leftover describes the pending calls that a forced deregister of the same storage left. It is
	// empty if there are none.
	Leftover string

	// Pending is the record that holds the pending calls. PendingTry is the last attempt to make
	// one of them. Each is nil if it is unknown.
	Pending    *Record
	PendingTry *Attempt

	// AtWork says why the agent must not change the storage yet. It is empty if the agent may.
	AtWork string

	// Staging is the observed state of the staging path. Targets and Binds hold the observed states
	// of the targets and the own directories, by alloc.
	Staging Sight
	Targets map[string]Sight
	Binds   map[string]Sight

	// Watched holds the observed state of each watched path, by path.
	Watched map[string]Sight

	// WatchOver is set once no earlier call can still change a mount. AttachmentOver is set once no
	// earlier call can still connect or disconnect the volume.
	WatchOver      bool
	AttachmentOver bool

	// Parked holds the Action.Key of each failed step whose retry is not due yet.
	Parked map[string]bool
}

// left reports whether a side that was present has changed its state, or has failed and must be
// undone.
func left(was, now Side) bool {
	return was == Present && now != Present || was != Failed && now == Failed
}

type progressKey struct{}

// WithProgress returns a context in which a step can report its progress to the given function.
func WithProgress(ctx context.Context, tell func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress passes the progress of a step, in words, to the function that WithProgress set. It does
// nothing if no function is set. A step should report only as often as a person can read.
func Progress(ctx context.Context, words string) {
	if tell, ok := ctx.Value(progressKey{}).(func(string)); ok {
		tell(words)
	}
}

// Awaited is the error of a failed wait for a volume. At is the last attempt at the step that the
// caller waited for.
type Awaited struct {
	Err error
	At  Attempt
}

// Error implements error. It returns the message of Err.
func (a *Awaited) Error() string { return a.Err.Error() }

// Unwrap returns both the reason and the failed call, so that errors.As finds either of them.
func (a *Awaited) Unwrap() []error {
	if a.At.Err == nil {
		return []error{a.Err}
	}
	return []error{a.Err, a.At.Err}
}

// expands reports whether the attempted step is part of an expansion.
func (at *Attempt) expands() bool {
	return at != nil && (at.Action.Kind == call.ControllerExpand || at.Action.Kind == call.NodeExpand)
}

// Attempt is the current step of a volume, with its failures so far. The agent keeps it only in
// memory.
type Attempt struct {
	Action  Action
	Err     *CallError // the last failure; nil if the step has not failed
	Tries   int
	First   time.Time // time of the first failure since the last success
	Next    time.Time // time of the next try or the end of the wait; zero if neither is scheduled
	Running bool

	// Progress describes the progress of the running step. It is empty if that is unknown.
	Progress string
	Unsent   bool // the last failure happened before any call or change
}

// failing reports whether the step has a failure that needs a person's attention.
func (at *Attempt) failing() bool {
	return at != nil && at.Err != nil && (at.Err.Final() || at.Tries >= stuckAfter)
}

// unusable reports whether the plugin failed to make the volume usable.
func (at *Attempt) unusable() bool {
	if at == nil || at.Err == nil || at.Unsent || at.Err.Unsent {
		return false
	}
	return at.Action.Forward() || at.expands()
}
