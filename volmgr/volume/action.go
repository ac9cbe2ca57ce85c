package volume

import "slices"

// Kind is what one step does.
type Kind string

// The steps. The first six are CSI calls by their own names; the others happen
// on the host alone.
const (
	ControllerPublish   Kind = "ControllerPublishVolume"
	NodeStage           Kind = "NodeStageVolume"
	NodePublish         Kind = "NodePublishVolume"
	NodeUnpublish       Kind = "NodeUnpublishVolume"
	NodeUnstage         Kind = "NodeUnstageVolume"
	ControllerUnpublish Kind = "ControllerUnpublishVolume"

	// Calls beside a volume's mounts. An Attempt names the first two.
	CreateVolume         Kind = "CreateVolume"
	DeleteVolume         Kind = "DeleteVolume"
	ControllerExpand     Kind = "ControllerExpandVolume"
	NodeExpand           Kind = "NodeExpandVolume"
	ControllerModify     Kind = "ControllerModifyVolume"
	ControllerGetVolume  Kind = "ControllerGetVolume"
	ListVolumes          Kind = "ListVolumes"
	GetCapacity          Kind = "GetCapacity"
	ValidateCapabilities Kind = "ValidateVolumeCapabilities"
	CreateSnapshot       Kind = "CreateSnapshot"
	DeleteSnapshot       Kind = "DeleteSnapshot"
	ListSnapshots        Kind = "ListSnapshots"
	GetSnapshot          Kind = "GetSnapshot"
	CreateGroupSnapshot  Kind = "CreateVolumeGroupSnapshot"
	DeleteGroupSnapshot  Kind = "DeleteVolumeGroupSnapshot"
	GetGroupSnapshot     Kind = "GetVolumeGroupSnapshot"
	NodeStats            Kind = "NodeGetVolumeStats"
	NodeHealth           Kind = "NodeGetVolumeHealth"
	NodeStorageHealth    Kind = "NodeGetStorageHealth"
	ControllerHealth     Kind = "ControllerGetVolumeHealth"
	ListHealth           Kind = "ControllerListVolumeHealth"

	Plan     Kind = "plan"      // record that calls of a further side will be made
	Doubt    Kind = "doubt"     // record that what was made is not there, or no good, before it is made again
	Bind     Kind = "bind"      // mount the target at Claim.At
	Unbind   Kind = "unbind"    // and take it away
	Own      Kind = "own"       // give the root of the volume the owner and mode that were asked for
	Take     Kind = "take"      // record that a claim whose mounts are there is taken, after it waited for an expansion
	Unmount  Kind = "unmount"   // take a target or the staged mount away with no call to the plugin
	Prove    Kind = "prove"     // nothing on the host uses the device
	EndWatch Kind = "end-watch" // no late mount came
	Free     Kind = "free"      // delete the claim: everything of it is undone
	Wait     Kind = "wait"      // nothing can be done now, Reason says why
	Settled  Kind = "settled"   // nothing is left to do
)

// Action is one step: what Next decides, an executor does, and Apply records.
type Action struct {
	Kind  Kind
	Alloc string // whose step it is, if it is one claim's
	// Path is the staging path of a stage or unstage, the target of a publish
	// or unpublish, the user's directory of a bind or unbind, any of them of a
	// doubt.
	Path string
	// How is as far as an Unmount or Unbind may go.
	How Without
	// Owed marks a call that was skipped, and is made up for.
	Owed bool
	// Dead marks the Doubt of what is there and has to be undone.
	Dead bool
	// NodeID is given to ControllerPublish and ControllerUnpublish.
	NodeID string
	// Sure marks a ControllerUnpublish that no earlier ControllerPublish can outlast:
	// if it succeeds the volume is not attached, and stays so.
	Sure bool
	// Uses is what a Plan records.
	Uses Uses
	// Size is what an expansion is to come to, in bytes.
	Size int64
	// Reason says why a Wait waits; Cause classes it.
	Reason string
	Cause  Cause
}

// Cause classes why a volume waits.
type Cause string

// Causes of a Wait.
const (
	CauseHalted  Cause = "halted"  // the agent sends no call at all
	CausePlugin  Cause = "plugin"  // the plugin is not ready
	CauseBackoff Cause = "backoff" // a step failed and is not due yet
	CauseForeign Cause = "foreign" // a mount that no record explains is in the way
	CauseHung    Cause = "hung"    // a mount does not answer
	CauseWatch   Cause = "watch"   // a late effect may still come
	CauseDebt    Cause = "debt"    // what a forced deregister left of the same storage comes first
	CauseExpand  Cause = "expand"  // the volume is expanded first
	CauseOwner   Cause = "owner"   // a claim's owner is gone, and it is about to be released
	CauseDown    Cause = "down"    // this host is going down, and the volume has left it
	CauseInvalid Cause = "invalid" // the record holds a state this release does not know
)

// Key names the step for retry bookkeeping: one volume fails at one place
// without holding up what does not depend on it.
func (a Action) Key() string { return string(a.Kind) + "/" + a.Alloc }

// RPC reports whether the step is a call to the plugin.
func (a Action) RPC() bool {
	switch a.Kind {
	case ControllerPublish, NodeStage, NodePublish, NodeUnpublish, NodeUnstage, ControllerUnpublish, ControllerExpand, NodeExpand:
		return true
	default:
		return false
	}
}

// controllers are the calls to the controller service; every other one is to the
// node service.
var controllers = []Kind{
	ControllerPublish, ControllerUnpublish, CreateVolume, DeleteVolume, ControllerExpand, ControllerModify, ControllerGetVolume, ListVolumes,
	GetCapacity, ValidateCapabilities, CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot, CreateGroupSnapshot, DeleteGroupSnapshot,
	GetGroupSnapshot, ControllerHealth, ListHealth,
}

// Controller reports whether the step is a call to the controller service; every
// other call is to the node service.
func (k Kind) Controller() bool { return slices.Contains(controllers, k) }

// Forward reports whether the step makes something that another undoes.
func (a Action) Forward() bool {
	return a.Kind == ControllerPublish || a.Kind == NodeStage || a.Kind == NodePublish || a.Kind == Bind
}

// Wanted reports whether the step is one that wanted claims need: it makes
// something, or goes on with what was made.
func (a Action) Wanted() bool { return a.Forward() || a.Kind == Own }

// Outcome is how a step went. The zero value is success with nothing to add.
type Outcome struct {
	Err *CallError
	// Unsent is set where the step failed before anything was asked of anybody:
	// what it was to make or undo is as it was.
	Unsent bool
	// Warning is set where a step counts as done although the plugin said
	// otherwise.
	Warning string
	// Mount is what is mounted at Action.Path after a forward step; nil where
	// nothing is.
	Mount *MountIdentity
	// Devices are the block devices found at Action.Path, Boot is the one that
	// they have these numbers in.
	Devices []Device
	Boot    string
	// Sight is what was seen at Action.Path when the step was over; nil where
	// nobody looked.
	Sight *Sight
	// PublishContext is ControllerPublishVolume's answer.
	PublishContext map[string]string
	// ReadOnly says how a ControllerPublish attached the volume.
	ReadOnly bool
	// Unseen is what an Unmount or Unbind took out of sight only.
	Unseen *Unseen
	// Capacity is what an expansion came to, in bytes; 0 is unknown. With
	// NodeRequired it goes on at the node.
	Capacity     int64
	NodeRequired bool
	// StageSuspect is set by a publish that showed the staging to be hollow.
	StageSuspect bool
}

// Seen is what was found at one path.
type Seen string

// What can be found at a path.
const (
	SeenNothing Seen = ""        // no mount point
	SeenMount   Seen = "mount"   // a mount that opens
	SeenDead    Seen = "dead"    // a mount that answers ENOTCONN, ESTALE, EIO …
	SeenHung    Seen = "hung"    // no answer within the bound
	SeenError   Seen = "unknown" // the look itself failed
)

// Sight is one look at one path.
type Sight struct {
	Seen     Seen
	Identity MountIdentity // when Seen is SeenMount or SeenDead, as far as known
	ReadOnly bool
	Detail   string // the error, or since when it hangs
	// Unchecked is set with SeenError where the look did not start in time: nothing is known to
	// be wrong.
	Unchecked bool
}

// Glimpse is a look, and where. The zero value is none.
type Glimpse struct {
	Path string
	Sight
}

// over reports whether the late effect that a watch expects can no longer come.
func (o Observed) over(w Watch) bool {
	if w.Attachment {
		return o.AttachmentOver
	}
	return o.WatchOver
}

// there reports whether something is mounted, dead or alive.
func (s Sight) there() bool { return s.Seen == SeenMount || s.Seen == SeenDead }

// Is reports whether the sight is the recorded mount. A backing file is compared only
// where both are known: a record from before it was kept has none.
func (s Sight) Is(m *MountIdentity) bool {
	if m == nil {
		return false
	}
	seen := s.Identity
	if seen.Backing == "" || m.Backing == "" {
		seen.Backing = m.Backing
	}
	return seen == *m
}

// Observed is what is true at one moment and is never stored.
type Observed struct {
	// Halt says why the agent sends no call at all; empty when it may.
	Halt string
	// Down is set while this host goes down: mounts and staging are taken away whatever
	// claims want, and nothing is made. The claims stay.
	Down bool
	// Boot is the boot id of the host.
	Boot   string
	Plugin PluginView
	// Debt says what a forced deregister of the same storage left; empty if nothing.
	Debt string
	// Pending is the record of that, and PendingTry how its last step went; nil if that
	// is not known.
	Pending    *Record
	PendingTry *Attempt
	// AtWork says why the storage must not be changed yet; empty if it may.
	AtWork string
	// Staging is the staging path; Targets and Binds are by alloc, for all claims.
	Staging Sight
	Targets map[string]Sight
	Binds   map[string]Sight
	// Watched are the watched paths, by path.
	Watched map[string]Sight
	// WatchOver is true once no uncertain call can have a late effect on a mount any
	// more, AttachmentOver once none can have one on the attachment.
	WatchOver      bool
	AttachmentOver bool
	// Parked holds Action.Key of steps that failed and are not due yet.
	Parked map[string]bool
}
