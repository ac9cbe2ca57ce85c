package service

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// fromClaimRequest returns the domain's request for a claim, without the alloc. It refuses unknown
// mount options and unprintable notes.
func fromClaimRequest(req api.ClaimRequest, p peer.Peer) (volume.Request, error) {
	fd, err := atFD(req.AtFD, p)
	if err != nil {
		return volume.Request{}, err
	}

	flags, err := volume.AtFlags(req.AtFlags)
	if err != nil {
		return volume.Request{}, err
	}
	if err := api.CheckNote(req.Note); err != nil {
		return volume.Request{}, err
	}

	return volume.Request{MountFlags: req.MountFlags, AtFD: fd, Terms: volume.Terms{
		ReadOnly: req.ReadOnly,
		Mode:     call.Capability{Access: call.AccessMode(req.AccessMode), Attachment: call.AttachmentMode(req.AttachmentMode)},
		Owner:    fromOwner(req.Owner, p),
		At:       req.At, AtFlags: flags, AtWritable: req.AtWritable,
		Own: fromOwnership(req.Ownership), Note: req.Note,
	}}, nil
}

// atFD returns the descriptor that the caller passes to the agent, or nil if there is none. Only
// root may pass a descriptor, because the agent mounts on the directory of the descriptor.
func atFD(fd *int, p peer.Peer) (*volume.Descriptor, error) {
	switch {
	case fd == nil || *fd == -1:
		return nil, nil
	case !p.Known || p.UID != 0:
		return nil, &api.Error{
			Code: api.CodePermission, Message: p.String() + " may not lend the agent a descriptor (at_fd): only root may",
			Hint: "omit at_fd: the agent opens the directory itself",
		}
	case *fd < 0:
		return nil, volume.Errorf(volume.ErrInvalid, "at_fd is %d, which is not a descriptor", *fd)
	}

	return &volume.Descriptor{PID: p.PID, FD: *fd}, nil
}

// toClaim describes a claim in the API's terms.
func toClaim(r volume.Record, c volume.Claim, p plugin.View, owners volume.Owners) api.Claim {
	a := api.Claim{
		Volume: r.Volume.ID, PluginID: r.Volume.PluginID, Alloc: c.Alloc, State: string(c.State), Wanted: c.Wanted,
		ReadOnly: c.ReadOnly, AccessMode: string(c.Mode.Access), AttachmentMode: string(c.Mode.Attachment),
		Owner: toOwner(c.Keeper(), owners), Path: c.Path(), Target: c.Target, At: c.At, Since: c.Since,
		AtFlags: c.AtFlags, AtWritable: c.AtWritable, Note: c.Note,
		Ownership: toOwnership(c.Own.Explicit()), // without the default owner: the claim does not record whether it was applied
	}

	if c.Adopted {
		a.Adopted, a.Remark = true, "adopted"
	}
	if r.Lack(p) != "" {
		a.Remark = strings.TrimPrefix(a.Remark+", plugin unavailable", ", ")
	}
	return a
}

// fromOwnership converts the ownership in a request into the domain's type.
func fromOwnership(o api.Ownership) volume.Ownership {
	text := func(id *uint32) string {
		if id == nil {
			return ""
		}
		return strconv.FormatUint(uint64(*id), 10)
	}

	mode := o.Mode
	if m, err := strconv.ParseUint(mode, 8, 32); err == nil {
		mode = fmt.Sprintf("%04o", m) // 770 and 0770 both become 0770
	}
	return volume.Ownership{UID: text(o.UID), GID: text(o.GID), Mode: mode, Recursive: o.Recursive}
}

// toOwnership converts the ownership of a claim into the API's type.
func toOwnership(o volume.Ownership) api.Ownership {
	number := func(id string) *uint32 {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil
		}
		return new(uint32(n))
	}

	return api.Ownership{UID: number(o.UID), GID: number(o.GID), Mode: o.Mode, Recursive: o.Recursive}
}

// fromOwner converts the owner in a request. It ignores fields that the owner's kind does not use.
// If the owner is a mount and the request names no process, fromOwner uses the caller's process.
func fromOwner(o api.Owner, p peer.Peer) volume.Owner {
	switch o.Kind {
	case api.OwnerMount:
		if o.PID == 0 {
			o.PID = p.PID
		}
		return volume.Owner{Kind: volume.OwnerMount, PID: o.PID}
	case api.OwnerPID:
		return volume.Owner{Kind: volume.OwnerPID, PID: o.PID}
	case api.OwnerUnit:
		return volume.Owner{Kind: volume.OwnerUnit, Unit: o.Unit, Invocation: o.Invocation}
	default:
		return volume.Owner{Kind: o.Kind}
	}
}

// toOwner describes an owner and its current state.
func toOwner(o volume.Owner, owners volume.Owners) api.Owner {
	a := api.Owner{Kind: o.Kind, PID: o.PID, Unit: o.Unit, Invocation: o.Invocation, Runtime: o.Runtime}
	if !o.Mortal() {
		return a
	}

	v := owners.View(o)
	a.State, a.Command, a.References = string(v.Life), v.Command, v.References
	if o.Kind == volume.OwnerUnit {
		a.PID = v.PID
	}
	return a
}
