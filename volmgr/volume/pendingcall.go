package volume

import (
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
)

// Without says how forcefully the agent unmounts if it detaches a claim without calling the plugin.
// Each value also permits the milder ways before it.
type Without string

// These are the ways to unmount. The zero value means that the plugin unmounts.
const (
	WithPlugin Without = ""
	ByUmount   Without = "umount" // calls umount(2), which fails while a process uses the mount
	ByForce    Without = "force"  // then uses MNT_FORCE, which aborts requests to the storage
	ByLazy     Without = "lazy"   // then uses MNT_DETACH, which hides the mount at once; the mount ends with its last user
)

// ladder lists the ways to unmount without the plugin, from the mildest to the most forceful.
var ladder = []Without{ByUmount, ByForce, ByLazy}

// Check returns an error if the value is unknown.
func (w Without) Check() error {
	if w != WithPlugin && !slices.Contains(ladder, w) {
		return Errorf(ErrInvalid, "unknown way to unmount %q", string(w)).WithHint("one of umount, force, lazy")
	}
	return nil
}

// Steps returns the ways to unmount that w permits, with the mildest first. It is empty if the
// plugin unmounts.
func (w Without) Steps() []Without { return ladder[:slices.Index(ladder, w)+1] }

// Stronger returns the next more forceful way to unmount, or the zero value if w is the most
// forceful.
func (w Without) Stronger() Without {
	if i := slices.Index(ladder, w); i+1 < len(ladder) {
		return ladder[i+1]
	}
	return WithPlugin
}

// DetachWithout marks a claim as no longer wanted, like Detach, but the detach does not wait for
// the plugin. The parameter how says how the agent unmounts. If the claim is already being
// detached, how replaces the earlier value.
func DetachWithout(r Record, alloc string, how Without) (Record, error) {
	r, err := Detach(r, alloc)
	if c, ok := r.Claims[alloc]; err == nil && ok && how != WithPlugin && c.Without != how {
		c.Without = how
		r = r.with(c)
	}
	return r, err
}

// PendingCalls describes each call that the plugin must still receive. These are the recorded
// pending calls. If the volume has no claims but is still connected, they also include a
// ControllerUnpublishVolume.
func (r Record) PendingCalls() []string {
	var words []string
	for _, d := range r.Node.PendingCalls {
		s := string(d.Kind) + " " + d.Path
		if d.Alloc != "" {
			s += fmt.Sprintf(" (%q)", d.Alloc)
		}

		words = append(words, s)
	}

	if len(r.Claims) == 0 && r.Node.Attached != Absent {
		words = append(words, fmt.Sprintf("%s from node %q", call.ControllerUnpublish, r.Node.NodeID))
	}
	return words
}

// pendingCallKinds returns the names of the pending calls without duplicates.
func pendingCallKinds(r Record) string {
	var kinds []string
	for _, d := range r.PendingCalls() {
		kind, _, _ := strings.Cut(d, " ")
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}

	return strings.Join(kinds, ", ")
}

// Left describes every leftover of a detach without the plugin: lazily unmounted mounts and pending
// calls.
func (r Record) Left() []string {
	var left []string
	for _, u := range r.Node.Unseen {
		left = append(left, u.words())
	}

	for _, d := range r.PendingCalls() {
		left = append(left, fmt.Sprintf("pending call to plugin %q: %s", r.Volume.PluginID, d))
	}

	return left
}

// addPendingCall adds the pending call d to the record. The parameter made is the mount that the
// plugin made and the host has unmounted. It is nil if no mount was recorded.
func addPendingCall(r Record, d PendingCall, made *MountIdentity) Record {
	if made != nil {
		d.Mount = *made
	}
	if !slices.Contains(r.Node.PendingCalls, d) {
		r.Node.PendingCalls = append(slices.Clone(r.Node.PendingCalls), d)
	}
	return r
}

// removePendingCalls removes the pending calls that a successful call k for the path has made
// unnecessary.
func removePendingCalls(r Record, k call.Method, path string) Record {
	is := func(d PendingCall) bool { return d.Kind == k && d.Path == path }
	if !slices.ContainsFunc(r.Node.PendingCalls, is) {
		return r
	}
	r.Node.PendingCalls = slices.DeleteFunc(slices.Clone(r.Node.PendingCalls), is)
	return clearUndone(r)
}

// clearUndone removes data that the agent needs only until all sides are undone.
func clearUndone(r Record) Record {
	n := r.Node
	if n.held() {
		return r // the proof before the end of the hold needs this data
	}
	if len(n.PendingCalls) == 0 && n.Attached == Absent {
		r.Node.Unseen, n.Unseen = nil, nil
	}
	if len(r.Claims) == 0 && n.Attached == Absent && n.Staged == Absent {
		r.Node = NodeSide{
			Watches: n.Watches, StagingPath: n.StagingPath, Seq: n.Seq, PendingCalls: n.PendingCalls, Unseen: n.Unseen,
		}
	}

	return r
}

// hasPendingCallAt reports whether the record has a pending call for the given path.
func hasPendingCallAt(r Record, path string) bool {
	return slices.ContainsFunc(r.Node.PendingCalls, func(d PendingCall) bool { return d.Path == path })
}

// makePendingCalls chooses a pending call. As CSI requires, the calls for targets come before the
// call for the staging path.
func (p *planner) makePendingCalls() bool {
	if p.leaving() {
		return false // a detach without the plugin must not wait for pending calls
	}

	for _, d := range p.r.Node.PendingCalls {
		a := Action{Kind: d.Kind, Alloc: d.Alloc, Path: d.Path, Pending: true}
		if d.Kind == call.NodeUnpublish && p.try(a) || d.Kind == call.NodeUnstage && p.tryUnstage(a) {
			return true
		}
	}

	return false
}

// leaving reports whether the last claim is being detached without the plugin.
func (p *planner) leaving() bool { return len(p.claims) == 1 && p.claims[0].Without != WithPlugin }

// unpublishForPending chooses a step that undoes a target whose state is unknown after a crash,
// because such a target blocks a pending unstage. If another reason blocks the pending calls, the
// planner has already noted that reason.
func (p *planner) unpublishForPending() bool {
	if !slices.ContainsFunc(p.r.Node.PendingCalls, func(d PendingCall) bool { return d.Kind == call.NodeUnstage }) {
		return false
	}
	return slices.ContainsFunc(p.claims, p.unpublish)
}

// tryUnstage chooses an unstage, unless a target is still published. If the plugin makes the
// unstage, a pending NodeUnpublishVolume also blocks it, because the plugin still considers the
// target published.
func (p *planner) tryUnstage(a Action) bool {
	owed := func(d PendingCall) bool { return d.Kind == call.NodeUnpublish }
	if p.anyMounted() || a.RPC() && slices.ContainsFunc(p.r.Node.PendingCalls, owed) {
		return false
	}
	return p.try(a)
}

// applyUnmount records that the host undid a side without calling the plugin.
func applyUnmount(r Record, a Action, out Outcome) Record {
	if out.Err != nil {
		return r // the agent retries the unmount, or a user requests a more forceful detach
	}
	if out.Unseen != nil {
		r.Node.Unseen = append(slices.Clone(r.Node.Unseen), *out.Unseen)
	}

	r.Node.Proven = false
	if a.Alloc == "" {
		made := r.Node.Mount
		r.Node.Staged, r.Node.Mount = Absent, nil
		return addPendingCall(r, PendingCall{Kind: call.NodeUnstage, Path: a.Path}, made)
	}

	c, ok := r.Claims[a.Alloc]
	if !ok || c.Target != a.Path {
		return r
	}

	made := c.Mount
	c.Published, c.Mount = Absent, nil
	return addPendingCall(r.with(c), PendingCall{Kind: call.NodeUnpublish, Path: a.Path, Alloc: a.Alloc}, made)
}

// PendingCallState describes the pending calls of a volume, and how a user can discard them.
type PendingCallState struct {
	// How says when the agent will make the calls, or why the last attempt failed.
	How string
	// Failed is set if the last attempt failed. GiveUp is the command that discards the calls.
	Failed bool
	GiveUp remedy.Remedy
}

// givingUp describes the consequences of discarding pending calls.
const givingUp = "the plugin then never receives these calls, and its mounts and attachments stay"

// PendingCallState returns the state of a record's pending calls. The record must have pending
// calls. The parameter at is the last attempt at a step.
func (r Record) PendingCallState(at *Attempt, p plugin.View) PendingCallState {
	c := PendingCallState{GiveUp: remedy.Of(remedy.GiveUpCalls, r.Volume.ID)}
	next := (&planner{r: r, claims: r.Ordered()}).undoes()
	switch {
	case at != nil && at.Err != nil && !at.Action.Wanted():
		c.Failed = true
		c.How = fmt.Sprintf("the last try failed: %v; the agent retries it. To discard the calls: %s; %s", at.Err, suggest.Words(c.GiveUp), givingUp)
	case !p.ReadyFor(next):
		c.How = fmt.Sprintf("the calls are made when plugin %q is ready. If it never is: %s; %s", r.Volume.PluginID, suggest.Words(c.GiveUp), givingUp)
	case at != nil && at.Action.Kind == Wait && at.Action.Reason != "":
		c.How = "the calls are pending: " + at.Action.Reason
	default:
		c.How = "the calls are being made"
	}

	return c
}

// Lack says why the agent cannot send a call that the volume may need. If the agent can send all
// such calls, Lack returns "".
func (r Record) Lack(v plugin.View) string {
	switch {
	case !v.ReadyFor(call.NodePublish):
		return v.Lacks(r.Volume.PluginID, call.NodePublish)
	case (v.Info.Caps.Attach || r.Node.Uses.Attach || v.Unasked(call.ControllerPublish)) && !v.ReadyFor(call.ControllerPublish):
		return v.Lacks(r.Volume.PluginID, call.ControllerPublish)
	default:
		return ""
	}
}

// FinalLack returns the same text as Lack if the agent cannot send the call until a person acts. In
// all other cases, it returns "".
func (r Record) FinalLack(v plugin.View) string {
	attaches := v.Info.Caps.Attach || r.Node.Uses.Attach
	switch {
	case v.FinalFor(call.NodePublish):
		return v.Lacks(r.Volume.PluginID, call.NodePublish)
	case attaches && v.FinalFor(call.ControllerPublish):
		return v.Lacks(r.Volume.PluginID, call.ControllerPublish)
	default:
		return ""
	}
}

// PendingCall is a call that the agent skipped, because the host undid the side without the plugin.
// The agent makes the call when the plugin is ready.
type PendingCall struct {
	Kind  call.Method `json:"kind"` // NodeUnpublish or NodeUnstage
	Path  string      `json:"path"`
	Alloc string      `json:"alloc,omitempty"` // alloc whose target the call unpublishes; empty for NodeUnstage
	// Mount is the mount that was at Path. It is zero if the mount is unknown. The agent must not
	// let the call unmount any other mount.
	Mount MountIdentity `json:"mount,omitzero"`
}

// Unseen is a lazily unmounted mount that may still be in use.
type Unseen struct {
	Path  string   `json:"path"`
	Users []string `json:"users,omitempty"` // descriptions of the users at the time of the unmount
}

// words describes the mount and its users.
func (u Unseen) words() string {
	s := u.Path + " was unmounted lazily: processes with open files there can still use it"
	if len(u.Users) > 0 {
		s += " (" + strings.Join(u.Users, "; ") + ")"
	}
	return s
}
