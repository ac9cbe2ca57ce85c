package volume

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
)

// ErrDetaching is the kind of a refusal because of a claim that is still being detached. A later
// retry can succeed. ErrDetaching wraps ErrRefused.
var ErrDetaching = fmt.Errorf("being detached: %w", ErrRefused)

// Request describes the claim that a caller requests.
type Request struct {
	Alloc string
	Terms

	// MountFlags are the flags with which the volume is mounted. All claims of a volume share them,
	// so they are not part of the Terms of a claim.
	MountFlags []string

	// Guard identifies the directory At if the agent may set a guard on it. Otherwise Guard is nil.
	Guard *GuardedDir

	// AtFD is a file descriptor with which the caller has opened At. It is nil if the caller passes
	// no descriptor.
	AtFD *Descriptor

	// Owners reports which owners have ended. If it is nil, all owners count as alive.
	Owners Owners

	// Operation names the acquisition of a hold, if the claim needs one. The name must be unique in
	// the cluster.
	Operation string

	// Draining is set while the host is being drained. Admit then refuses every new claim.
	Draining bool

	// Leaving names the host to which a person moves the volume. Admit then refuses every new claim.
	Leaving string

	// StagingPath and the path after it are where the agent stages and publishes the volume if it
	// admits the claim.
	StagingPath string
	Target      string
}

// Private returns the value of Claim.Private for the requested claim.
func (q Request) Private() bool { return q.At != "" || q.Owner.Kind == OwnerRuntime }

// Admit decides whether a request gets a claim and returns the record with that claim. The decision
// depends on the modes in force. If the alloc already has an equal claim, Admit changes nothing.
//
// Admit refuses with ErrDetaching if a retry can succeed, and otherwise with ErrRefused. The
// message names the conflicting claims and a way to free the volume. A claim whose owner has ended
// counts as being detached.
func Admit(r Record, req Request, p plugin.Info, now time.Time) (Record, error) {
	v := r.Volume
	if v.Provision != Provisioned {
		return r, Errorf(ErrRefused, "volume %q is not ready to be claimed: %s did not end", v.ID, v.Provision).
			WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	}
	if bad := unknownState(r); bad != "" {
		return r, Errorf(ErrRefused, "volume %q is kept as it is: %s", v.ID, bad)
	}
	if len(r.Claims) > 0 && r.Node.Mode == nil {
		return r, Errorf(ErrRefused, "volume %q is kept as it is: it has claims and no mode", v.ID)
	}

	if r.Rescoping && !r.Held() {
		return r, Errorf(ErrDetaching, "the scope of volume %q is being changed", v.ID).WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	}

	seen := Past(r, req.Owners)
	if c, ok := seen.Claims[req.Alloc]; ok && (c.Wanted || !req.Draining) {
		return r, repeated(seen, c, req)
	}
	if req.Draining {
		return r, Errorf(ErrRefused, "cannot claim volume %q: this host is draining", v.ID).WithRemedy(remedy.Of(remedy.Undrain))
	}
	if req.Leaving != "" {
		return r, Errorf(ErrRefused, "cannot claim volume %q: it is being moved to host %q", v.ID, req.Leaving).WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	}
	if err := v.CheckHost(p); err != nil {
		return r, err
	}

	mode, err := choose(seen, req, p.Caps)
	if err != nil {
		return r, err
	}
	if req.AtFlags != "" && mode.Attachment != call.FileSystem {
		return r, Errorf(ErrInvalid, "volume %q is claimed as a %s, and mount options (%s) are for a file system", v.ID, mode.Attachment, req.AtFlags)
	}

	own, err := req.ownable(v.ID, mode, p.Caps)
	if err != nil {
		return r, err
	}
	if err := fits(seen, req, mode.Access, now); err != nil {
		return r, err
	}
	if err := checkOwnDir(seen, req); err != nil {
		return r, err
	}
	if err := fitsHold(seen, req, mode); err != nil {
		return r, err
	}
	if len(r.Claims) == 0 {
		r = beginFirstClaim(r, req, mode, p)
	}
	if req.Guard != nil && mode.Attachment == call.FileSystem {
		r = addGuard(r, *req.Guard)
	}

	terms := req.Terms
	terms.Mode, terms.Own = mode.Capability, own

	r.Node.Seq++
	return r.with(Claim{
		Alloc: req.Alloc, Seq: r.Node.Seq, Wanted: true, State: Pending, Terms: terms, Since: now, Target: req.Target,
	}), nil
}

// beginFirstClaim prepares a record for its first claim: it sets the mode and the staging path.
func beginFirstClaim(r Record, req Request, mode *Mode, p plugin.Info) Record {
	r.Node.Mode = mode
	if !r.Held() || r.Node.StagingPath == "" {
		r.Node.StagingPath = req.StagingPath
	}

	r.Node.Uses = r.Node.Uses.with(p)
	r = beginHold(r, req, mode)
	switch r.Node.Attached {
	case Absent:
		r.Node.NodeID = p.NodeID
	case Present:
		if r.Node.Hold.Confirmed {
			break // the attachment remained because the cluster's store was not reachable
		} // an earlier claim was detached without the plugin, and left the volume connected
		r.Node.Attached, r.Node.Proven = Unknown, false
	}

	return r
}

// checkOwnDir returns an error if another claim of the volume already uses the requested own
// directory.
func checkOwnDir(r Record, req Request) error {
	if req.At == "" {
		return nil
	}

	for _, c := range r.Claims { // at most one claim uses this directory
		if c.At == req.At {
			return Errorf(inForce(c), "%s is taken by the claim of %q on this volume", req.At, c.Alloc).
				WithRemedy(remedy.Of(remedy.DetachClaim, r.Volume.ID, c.Alloc))
		}
	}

	return nil
}

// repeated decides about a request by an alloc that already has a claim. If the terms are the same,
// it returns nil. If the owner of the claim has ended, the claim counts as being detached. For
// example, the owner has ended if it was a service that has since been restarted.
func repeated(r Record, c Claim, req Request) error {
	if !c.Wanted {
		return &Error{
			Kind:    ErrDetaching,
			Message: fmt.Sprintf("the earlier claim of %q on volume %q is still being detached (%s)", c.Alloc, r.Volume.ID, c.State),
			Remedy:  remedy.Of(remedy.ShowVolume, r.Volume.ID),
		}
	}

	asked := req.Terms
	if c.ownedAs(asked.Owner) {
		asked.Owner = c.Owner // any process may ask for a mount that already exists
	}

	differ := c.differences(asked)
	if len(req.MountFlags) > 0 && !slices.Equal(req.MountFlags, r.Node.Mode.MountFlags) {
		differ = append(differ, "mount flags")
	}
	if len(differ) == 0 {
		return nil
	}

	return Errorf(ErrRefused, "%q already has a claim on volume %q, with another %s", c.Alloc, r.Volume.ID, strings.Join(differ, ", ")).
		WithRemedy(remedy.Of(remedy.DetachClaim, r.Volume.ID, c.Alloc))
}

// choose returns the complete mode for the request. The mode must match the volume's capabilities,
// and the mode of its present claims if there are any.
func choose(r Record, req Request, caps plugin.Caps) (*Mode, error) {
	if m := r.Node.Mode; len(r.Claims) > 0 {
		switch {
		case req.Mode.Attachment != "" && req.Mode.Attachment != m.Attachment:
			return nil, Errorf(inForce(r.Ordered()...), "volume %q is claimed as %s; it cannot be a %s at the same time", r.Volume.ID, m.Attachment, req.Mode.Attachment)
		case req.Mode.Access != "" && req.Mode.Access != m.Access:
			return nil, Errorf(inForce(r.Ordered()...), "volume %q is claimed in mode %s; %s must wait until it is free", r.Volume.ID, m.Access, req.Mode.Access)
		case len(req.MountFlags) > 0 && !slices.Equal(req.MountFlags, m.MountFlags):
			return nil, Errorf(inForce(r.Ordered()...), "volume %q is mounted with the flags %v of its first claim", r.Volume.ID, m.MountFlags)
		}

		return m, nil
	}

	for _, c := range r.Volume.Capabilities {
		if req.Mode.Access != "" && req.Mode.Access != c.Access || req.Mode.Attachment != "" && req.Mode.Attachment != c.Attachment {
			continue
		}
		if !req.ReadOnly && !c.Access.Writable() {
			continue
		}

		m := &Mode{Capability: c, FSType: r.Volume.MountOptions.FSType, MountFlags: r.Volume.MountOptions.MountFlags}
		if len(req.MountFlags) > 0 {
			m.MountFlags = req.MountFlags
		}
		if caps.MountGroup && c.Attachment == call.FileSystem {
			m.Group = req.Own.Explicit().GID
		}
		return m, nil
	}

	return nil, Errorf(ErrRefused, "volume %q has no capability for %s; it lists %s", r.Volume.ID, req.wish(), list(r.Volume.Capabilities)).
		WithRemedy(remedy.Of(remedy.AddCapability))
}

// inForce returns the kind of error for a refusal because of the given claims. The kind is
// ErrDetaching if all of them are being detached, because a retry can then succeed.
func inForce(claims ...Claim) error {
	for _, c := range claims {
		if c.Wanted {
			return ErrRefused
		}
	}
	return ErrDetaching
}

// fits checks whether the request is allowed beside the present claims. Claims that are being
// detached still count. In a mode that allows any number of claims, fits does not read the claims,
// because there may be thousands.
func fits(r Record, req Request, mode call.AccessMode, now time.Time) error {
	if !req.ReadOnly && !mode.Writable() {
		return Errorf(inForce(r.Ordered()...), "volume %q is claimed in mode %s, which does not permit writing", r.Volume.ID, mode)
	}

	var blocks func(Claim) bool
	switch mode {
	case call.SingleNodeWriter, call.SingleNodeSingleWriter, call.SingleNodeReaderOnly:
		blocks = func(Claim) bool { return true }
	case call.MultiNodeSingleWriter:
		blocks = func(c Claim) bool { return !req.ReadOnly && (!c.ReadOnly || c.Adopted) }
	default:
		return nil
	}

	blocking := slices.DeleteFunc(r.Ordered(), func(c Claim) bool { return !blocks(c) })
	if len(blocking) == 0 {
		return nil
	}

	return inTheWay(r, mode, blocking, req.Owners, now)
}

// inTheWay returns an error that names the claims that block the request. If one of them has a live
// owner, a user must act. If all owners have ended, the caller only needs to wait.
func inTheWay(r Record, mode call.AccessMode, blocking []Claim, owners Owners, now time.Time) error {
	var names []string
	kind, fix := ErrDetaching, remedy.Of(remedy.ShowVolume, r.Volume.ID)
	for _, c := range blocking {
		age := now.Sub(c.Since).Round(time.Second)
		if c.Wanted {
			kind, fix = ErrRefused, c.freedBy(r.Volume.ID)
			state := string(c.State)
			if c.Adopted {
				state += ", adopted"
			}

			name := fmt.Sprintf("%q (%s, for %s", c.Alloc, state, age)
			if c.Owner.Mortal() && owners != nil {
				name += ", owned by " + c.Keeper().Describe(owners.View(c.Keeper()))
			}

			names = append(names, name+")")
		} else {
			names = append(names, fmt.Sprintf("%q (being detached: %s)", c.Alloc, c.State))
		}
	}

	return &Error{
		Kind:    kind,
		Message: fmt.Sprintf("volume %q is in use in mode %s by %s", r.Volume.ID, mode, strings.Join(names, ", ")),
		Remedy:  fix,
	}
}

// Clash refuses a new claim if another volume uses one of its paths. The own directory may belong
// to another claim. A forced deregister may have left a mount at the target or at the staging path.
// The parameter others contains all records, and leftovers contains the records of forced
// deregisters.
func Clash(r Record, c Claim, others, leftovers []Record) error {
	for _, o := range others {
		for _, have := range o.Claims {
			if c.At != "" && have.At == c.At && o.Volume.ID != r.Volume.ID {
				return Errorf(ErrRefused, "%s is taken by the claim of %q on volume %q", c.At, have.Alloc, o.Volume.ID).
					WithRemedy(remedy.Of(remedy.DetachClaim, o.Volume.ID, have.Alloc))
			}
		}
	}

	for _, o := range leftovers {
		if o.Volume.Driver == r.Volume.Driver && o.Volume.ExternalID == r.Volume.ExternalID {
			continue // for the same storage, the claim waits until the agent has undone the leftovers
		}

		for _, p := range o.Places() {
			if p.Path == c.Target || p.Path == r.Node.StagingPath {
				return Errorf(ErrRefused, "%s may still have a mount of volume %q (external_id %q), which was deregistered by force", p.Path, o.Volume.ID, o.Volume.ExternalID).
					WithRemedy(remedy.Of(remedy.SeeOrGiveUpCalls, o.Volume.ID))
			}
		}
	}

	return nil
}

// Detach marks a claim as no longer wanted. It returns ErrNotFound if the alloc has no claim. If
// the claim is already being detached, Detach changes nothing.
func Detach(r Record, alloc string) (Record, error) {
	c, ok := r.Claims[alloc]
	if !ok {
		return r, Errorf(ErrNotFound, "%q has no claim on volume %q", alloc, r.Volume.ID).
			WithRemedy(remedy.Of(remedy.ShowVolume, r.Volume.ID))
	}
	if !c.Wanted {
		return r, nil
	}
	return r.with(c.unwanted()), nil
}

// IsDetaching reports whether err is a refusal because of a claim that is still being detached.
func IsDetaching(err error) bool { return errors.Is(err, ErrDetaching) }

func (q Request) wish() string {
	s := "a writer"
	if q.ReadOnly {
		s = "a reader"
	}
	if q.Mode.Access != "" {
		s += " in mode " + string(q.Mode.Access)
	}
	if q.Mode.Attachment != "" {
		s += " as " + string(q.Mode.Attachment)
	}
	return s
}

func list(caps []call.Capability) string {
	words := make([]string, len(caps))
	for i, c := range caps {
		words[i] = string(c.Access) + "/" + string(c.Attachment)
	}
	return strings.Join(words, ", ")
}

// Unused returns an error if the volume has claims or pending calls, or is still connected, staged
// or mounted on this host.
func Unused(r Record) error {
	id := r.Volume.ID
	var names []string
	releasing := true
	for _, c := range r.Ordered() {
		names = append(names, fmt.Sprintf("%q (%s)", c.Alloc, c.State))
		releasing = releasing && !c.Wanted
	}

	switch {
	case len(names) > 0 && !releasing:
		return Errorf(ErrRefused, "volume %q is claimed by %s", id, strings.Join(names, ", ")).
			WithRemedy(remedyByDetach(r))
	case len(names) > 0:
		return Errorf(ErrRefused, "the claim of %s on volume %q is still being detached", strings.Join(names, ", "), id).
			WithRemedy(remedy.Of(remedy.AwaitFree, id))
	case len(r.PendingCalls()) > 0:
		return Errorf(ErrRefused, "plugin %q has pending calls for volume %q: %s", r.Volume.PluginID, id, strings.Join(r.PendingCalls(), ", ")).
			WithRemedy(remedy.Of(remedy.ShowPlugin, r.Volume.PluginID))
	case r.Held():
		return Errorf(ErrRefused, "volume %q is still being taken off this host", id).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	return nil
}

// remedyByDetach returns the remedy that detaches the claims of the volume. A claim with a live
// owner cannot be detached directly. If there is such a claim, the remedy concerns its owner.
func remedyByDetach(r Record) remedy.Remedy {
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			return c.freedBy(r.Volume.ID)
		}
	}
	return remedy.Of(remedy.DetachAll, r.Volume.ID)
}

// Room returns ErrRefused if the volume is not on this host yet and the plugin cannot have another
// volume here. The limit is NodeGetInfo.max_volumes_per_node of CSI, where 0 means no limit. Each
// storage volume with a possible side on this host counts once, even if its claims are being
// detached. The parameter others contains all records, and leftovers contains the records of forced
// deregisters. The volumes in reserved have no side on this host yet, and each of them has a reserved place.
func Room(r Record, p plugin.Info, others, leftovers []Record, reserved []Volume) error {
	if p.MaxVolumes <= 0 || r.Held() {
		return nil
	}

	here := map[string]string{} // maps the key of each storage volume on this host to a volume id
	for _, v := range reserved {
		if v.PluginID == r.Volume.PluginID {
			here[LeftoverKey(v.Driver, v.ExternalID)] = v.ID + " (reserved)"
		}
	}
	for _, o := range slices.Concat(leftovers, others) {
		if o.Volume.PluginID == r.Volume.PluginID && o.Held() {
			here[LeftoverKey(o.Volume.Driver, o.Volume.ExternalID)] = o.Volume.ID
		}
	}

	delete(here, LeftoverKey(r.Volume.Driver, r.Volume.ExternalID)) // the volume itself may already be here because of a forced deregister
	if int64(len(here)) < p.MaxVolumes {
		return nil
	}

	ids := slices.Sorted(maps.Values(here))
	names := strings.Join(ids[:min(len(ids), namesMost)], ", ")
	if more := len(ids) - namesMost; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}

	return Errorf(ErrRefused, "plugin %q can have %d volumes on this host at once, and has %d: %s", r.Volume.PluginID, p.MaxVolumes, len(here), names).
		WithRemedy(remedy.Of(remedy.DetachUnneeded))
}
