package volume

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// These steps change only the record or this host. All other steps are CSI calls, and have the
// names of these calls.
const (
	Plan     call.Method = "plan"      // store the intent to make a further side
	Doubt    call.Method = "doubt"     // record that a mount is missing or dead, before the agent replaces it
	Bind     call.Method = "bind"      // bind-mount the target on the own directory
	Unbind   call.Method = "unbind"    // unmount the own directory
	Own      call.Method = "own"       // set the requested owner and mode of the volume's root
	Take     call.Method = "take"      // record that a claim is mounted, after the claim waited for an expansion
	Unmount  call.Method = "unmount"   // unmount a target or the staging path without calling the plugin
	Prove    call.Method = "prove"     // make a proof of unmount: nothing on the host uses the device
	EndWatch call.Method = "end-watch" // end all watches, because no late mount appeared
	Free     call.Method = "free"      // delete a claim whose sides are all undone
	Wait     call.Method = "wait"      // do nothing now, because of Reason
	Settled  call.Method = "settled"   // do nothing, because the volume is in the wanted state
)

// Action is one step. Next chooses the step, the agent carries it out, and Apply records its
// outcome.
type Action struct {
	Kind  call.Method
	Alloc string // alloc of the claim that needs the step; empty for a step of the whole volume

	// Path is the path on which the step works. For a stage or unstage, it is the staging path. For
	// a publish or unpublish, it is the target. For a bind or unbind, it is the own directory. For
	// a Doubt, it is any of these paths.
	Path string

	// How says how forcefully an Unmount or Unbind may unmount.
	How Without

	// Pending is set if the step makes a pending call.
	Pending bool

	// Dead is set on a Doubt about a mount that exists but returns only errors. The agent must undo
	// such a mount.
	Dead bool

	// NodeID is the node id for ControllerPublish and ControllerUnpublish.
	NodeID string

	// Sure is set on a ControllerUnpublish if no earlier ControllerPublish can still take effect.
	// After such a call has succeeded, the volume is certainly disconnected.
	Sure bool

	// Yield is set on a Prove after which the host gives up its hold, although claims want the volume.
	// The host has made no side under the hold, and no host can attach the volume now.
	Yield bool

	// Uses holds the sides that a Plan stores as the intent.
	Uses Uses

	// Size is the size that an expansion must reach, in bytes.
	Size int64

	// Early is set on a Free that ends the last claim although the volume is still attached or held.
	// The cluster's store is not reachable, so the agent does the rest later.
	Early bool

	// Reason explains a Wait to people. Cause is the class of this reason.
	Reason string
	Cause  Cause
}

// Cause is the class of the reason for a Wait.
type Cause string

// These are the causes of a Wait.
const (
	CauseHalted   Cause = "halted"  // the agent sends no calls at all
	CausePlugin   Cause = "plugin"  // the plugin is not ready
	CauseBackoff  Cause = "backoff" // a step failed and its retry is not due yet
	CauseForeign  Cause = "foreign" // an unknown mount covers the path
	CauseHung     Cause = "hung"    // a mount does not answer
	CauseWatch    Cause = "watch"   // an earlier call may still have a late effect
	CauseLeftover Cause = "debt"    // pending calls of a forced deregister of the same storage come first
	CauseExpand   Cause = "expand"  // the volume must be expanded first
	CauseOwner    Cause = "owner"   // the owner of a claim has ended, and the agent will detach the claim
	CauseDown     Cause = "down"    // this host is going down, and the volume is already unmounted
	CauseCluster  Cause = "cluster" // the cluster's store is not reachable, or this host is not registered
	CauseInvalid  Cause = "invalid" // the record contains a state that this release does not know
)

// Key returns a name under which the agent counts the failures of this step. After a failed step,
// the agent continues with steps that do not depend on it.
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

// Forward reports whether the step makes a side that another step can undo.
func (a Action) Forward() bool {
	return a.Kind == call.ControllerPublish || a.Kind == call.NodeStage || a.Kind == call.NodePublish || a.Kind == Bind
}

// Wanted reports whether the step makes or completes a mount for a wanted claim.
func (a Action) Wanted() bool {
	return a.Forward() || a.Kind == Own || a.Kind == Acquire || a.Kind == Confirm
}

// Outcome is the result of a step. The zero value means success without further data.
type Outcome struct {
	Err *CallError

	// Unsent is set if the step failed before it sent a call or changed the host. The state of the
	// side has then not changed.
	Unsent bool

	// Warning is set if the agent treats the step as done although the plugin reported a failure.
	Warning string

	// Mount is the mount that is at Action.Path after the step. It is nil if the path has no mount.
	Mount *MountIdentity

	// Devices holds the block devices under the mount at Action.Path. Their numbers are valid only
	// in the boot with the id Boot.
	Devices []Device
	Boot    string

	// Sight is the state of Action.Path after the step. It is nil if the path was not checked.
	Sight *Sight

	// PublishContext is the publish context that ControllerPublishVolume returned.
	PublishContext map[string]string

	// ReadOnly is set if ControllerPublishVolume connected the volume read-only.
	ReadOnly bool

	// Token identifies the hold after an Acquire, and Since is the time at which the host got it.
	Token Token
	Since time.Time

	// Unseen is a mount that the step unmounted lazily. Processes may still use it.
	Unseen *Unseen

	// Capacity is the size in bytes after an expansion. Zero means unknown. NodeRequired is set if
	// the agent must call NodeExpandVolume afterwards.
	Capacity     int64
	NodeRequired bool

	// StageSuspect is set if a failed publish showed that the volume is not staged properly.
	StageSuspect bool
}

// over reports whether the late effect that the watch w expects has become impossible.
func (o Observed) over(w Watch) bool {
	if w.Attachment {
		return o.AttachmentOver
	}
	return o.WatchOver
}

// Observed is the state of the host and the plugin at one moment. The agent never stores it.
type Observed struct {
	// Halt says why the agent must not send any calls. It is empty if the agent may send calls.
	Halt string

	// Down is set while this host goes down. The agent then unmounts and unstages volumes, and
	// makes no new mounts. The claims themselves remain.
	Down bool

	// Boot is the boot id of the host.
	Boot    string
	Plugin  plugin.View
	Cluster Cluster

	// Leftover describes the pending calls of a forced deregister of the same storage. It is empty
	// if there are no such calls.
	Leftover string

	// Pending is the record with the pending calls of a forced deregister. PendingTry is the last
	// attempt to make one of these calls. Each of them may be nil.
	Pending    *Record
	PendingTry *Attempt

	// AtWork says why the agent must not change the storage now. It is empty if the agent may
	// change the storage.
	AtWork string

	// Staging is the observed state of the staging path. For each alloc, Targets holds the observed
	// state of the target, and Binds holds that of the own directory.
	Staging Sight
	Targets map[string]Sight
	Binds   map[string]Sight

	// Watched maps each watched path to its observed state.
	Watched map[string]Sight

	// WatchOver is set if no earlier call can still change a mount. AttachmentOver is set if no
	// earlier call can still connect or disconnect the volume.
	WatchOver      bool
	AttachmentOver bool

	// Parked holds the Action.Key of each failed step whose retry is not due yet.
	Parked map[string]bool
}

// left reports whether a side is no longer present, or has newly failed and must be undone.
func left(was, now Side) bool {
	return was == Present && now != Present || was != Failed && now == Failed
}

type progressKey struct{}

// WithProgress returns a context in which a step reports its progress to the function tell.
func WithProgress(ctx context.Context, tell func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress reports the progress of a step, in words, to the function that WithProgress set. Without
// such a function, Progress does nothing. A step should not report faster than a person can read.
func Progress(ctx context.Context, words string) {
	if tell, ok := ctx.Value(progressKey{}).(func(string)); ok {
		tell(words)
	}
}

// Awaited is the error of a failed wait for a volume. At is the last attempt at the step for which
// the caller waited.
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

// Attempt describes the current step of a volume and its failures so far. The agent keeps it only
// in memory.
type Attempt struct {
	Action  Action
	Err     *CallError // the last failure, or nil if the step has not failed
	Tries   int
	First   time.Time // time of the first failure since the last success
	Next    time.Time // time of the next attempt or the end of the wait; zero if unknown
	Running bool

	// Progress describes the progress of the running step. It is empty if the progress is unknown.
	Progress string
	Unsent   bool // the last failure happened before the step sent a call or changed the host
}

// failing reports whether the step has a failure that a person should see.
func (at *Attempt) failing() bool {
	return at != nil && at.Err != nil && (at.Err.Final() || at.Tries >= stuckAfter)
}

// heldElsewhere reports whether the volume waits for another host that holds it.
func (at *Attempt) heldElsewhere() bool {
	return at != nil && at.Err != nil && at.Err.Code == CodeHeld
}

// unusable reports whether the plugin failed to make the volume usable.
func (at *Attempt) unusable() bool {
	if at == nil || at.Err == nil || at.Unsent || at.Err.Unsent {
		return false
	}
	return at.Action.Forward() || at.expands()
}
