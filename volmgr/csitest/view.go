package csitest

import (
	"slices"

	"google.golang.org/grpc/codes"
)

// view contains the state of all volumes as far as the caller knows it from the answers. It ignores the
// real effects of the calls: after a NodeStage that answered OK without an effect, the volume is staged
// in the view. The view depends only on the calls, so the plugin can rebuild it from the journal.
//
//	          start        answered OK in time
//	Stage     no → unsure  → yes    any other end: stays unsure
//	Unstage   yes → unsure → no
//
// NodePublish and ControllerPublish work in the same way, for each target and for each node. An unsure
// step remains unsure until its opposite succeeds.
type view struct {
	volumes map[string]*volumeView
	users   map[string]string // maps a target to the volume that uses it
	tokens  map[string]bool   // contains "method token" for each next_token that an answer of the method contained
	snaps   map[string]bool   // maps a snapshot id to whether the last answer reported the snapshot as ready
	groups  map[string][]string
	places  map[string]string // maps a volume name to Call.Places of a CreateVolume whose outcome is unknown
}

type certainty int

const (
	no certainty = iota
	unsure
	yes
)

func (c certainty) String() string { return [...]string{"not", "perhaps", "surely"}[c] }

type volumeView struct {
	made     map[string]string // volume context from the answer of CreateVolume
	attached map[string]*attachView
	staged   certainty
	staging  string // staging path; meaningless if staged is no
	stagedAs string // capability in the NodeStage call
	targets  map[string]*targetView

	stagedGroup string // mount group in the NodeStage call
	expands     bool   // the node must still continue an expansion
}

type attachView struct {
	is    certainty
	given map[string]string // publish context that the plugin returned
}

type targetView struct {
	is       certainty
	as       string // capability in the NodePublish call
	readOnly bool
}

func newView() view {
	return view{
		volumes: map[string]*volumeView{}, users: map[string]string{}, tokens: map[string]bool{}, snaps: map[string]bool{}, groups: map[string][]string{},
		places: map[string]string{},
	}
}

// of returns the view of one volume. The result is never nil.
func (v view) of(id string) *volumeView {
	if v.volumes[id] == nil {
		v.volumes[id] = &volumeView{attached: map[string]*attachView{}, targets: map[string]*targetView{}}
	}
	return v.volumes[id]
}

// user returns the id of another volume that uses the target, or an empty string if there is no
// such volume.
func (v view) user(target, except string) string {
	if id := v.users[target]; id != except {
		return id
	}
	return ""
}

// stagedAt returns the id of another volume that is, or may be, staged at path, or an empty string
// if there is no such volume.
func (v view) stagedAt(path, except string) string {
	for id, vol := range v.volumes {
		if id != except && vol.staged != no && vol.staging == path {
			return id
		}
	}
	return ""
}

// begin updates the view when a call arrives.
func (v view) begin(c Call) {
	if c.Volume == "" {
		return
	}

	vol := v.of(c.Volume)
	switch c.Method {
	case CreateVolume:
		v.places[c.Name] = c.Places
	case ControllerPublish:
		if vol.attached[c.NodeID] == nil {
			vol.attached[c.NodeID] = &attachView{}
		}

		vol.attached[c.NodeID].is = unsure
	case ControllerUnpublish:
		for node, a := range vol.attached {
			if c.NodeID == "" || node == c.NodeID {
				a.is = unsure
			}
		}
	case NodeStage:
		vol.staged, vol.staging, vol.stagedAs = unsure, c.StagingPath, c.Capability
		vol.stagedGroup = c.MountGroup
	case NodeUnstage:
		if vol.staging == c.StagingPath && vol.staged == yes {
			vol.staged = unsure
		}
	case NodePublish:
		vol.targets[c.TargetPath] = &targetView{is: unsure, as: c.Capability, readOnly: c.ReadOnly}
		v.users[c.TargetPath] = c.Volume
	case NodeUnpublish:
		if t := vol.targets[c.TargetPath]; t != nil {
			t.is = unsure
		}
	}
}

// end updates the view when a call has been answered.
func (v view) end(c Call) {
	if c.OK() {
		v.storageEnd(c)
	}
	if c.Method == CreateVolume && settled(c) {
		delete(v.places, c.Name)
	}
	if c.Volume == "" {
		return
	}

	vol := v.of(c.Volume)
	if c.OK() {
		switch c.Method {
		case CreateVolume:
			vol.made = c.Given
		case ControllerPublish:
			vol.attached[c.NodeID] = &attachView{is: yes, given: c.Given}
		case NodeStage:
			vol.staged = yes
		case NodePublish:
			if t := vol.targets[c.TargetPath]; t != nil {
				t.is = yes
			}
		}
	}

	switch {
	case !undone(c):
	case c.Method == ControllerUnpublish && c.NodeID == "":
		clear(vol.attached)
	case c.Method == ControllerUnpublish:
		delete(vol.attached, c.NodeID)
	case c.Method == NodeUnstage && vol.staging == c.StagingPath:
		vol.staged, vol.staging, vol.stagedAs = no, "", ""
	case c.Method == NodeUnpublish:
		delete(vol.targets, c.TargetPath)
		if v.users[c.TargetPath] == c.Volume {
			delete(v.users, c.TargetPath)
		}
	case c.Method == DeleteVolume && !vol.inUse():
		delete(v.volumes, c.Volume)
	}
}

// settled reports whether the caller knows the outcome of a call. The caller knows it if the answer
// is OK, or if the code means that the plugin did not begin the call (CSI spec, Error Scheme).
func settled(c Call) bool {
	refusals := []codes.Code{
		codes.InvalidArgument, codes.AlreadyExists, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied,
		codes.NotFound, codes.FailedPrecondition, codes.ResourceExhausted,
	}
	refused := slices.ContainsFunc(refusals, func(code codes.Code) bool { return code.String() == c.Code })
	return c.OK() || refused && !c.Late
}

// undone reports whether the caller may treat an undoing call as complete. This is the case if the
// plugin answers OK or does not know the volume. For a target without a mount, any error in the
// answer is sufficient, because some plugins refuse to unpublish a missing target.
func undone(c Call) bool {
	switch {
	case !slices.Contains([]string{ControllerUnpublish, NodeUnstage, NodeUnpublish, DeleteVolume}, c.Method), c.Late:
		return false
	case c.Code == okCode, c.Code == notFoundCode:
		return true
	default:
		return c.Method == NodeUnpublish && c.Ended() && !c.Mounted
	}
}

func (vol *volumeView) inUse() bool {
	return len(vol.attached) > 0 || vol.staged != no || len(vol.targets) > 0
}
