package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// RuntimeVolume is a volume under the name that a container runtime uses. A volume has at most one
// name in each runtime.
type RuntimeVolume struct {
	Runtime  string `json:"runtime"` // "docker" or "podman"
	Name     string `json:"name"`
	VolumeID string `json:"volume_id"`

	// Shared is set if the runtime knows the volume by the agent's plugin for shared volumes.
	Shared bool `json:"shared,omitempty"`

	// The following properties apply to the claims of all containers.
	ReadOnly  bool            `json:"read_only,omitempty"`
	Exclusive bool            `json:"exclusive,omitempty"` // set if each container has its own claim; otherwise all containers share one claim
	Access    call.AccessMode `json:"access_mode,omitempty"`
	Own       Ownership       `json:"own,omitzero"`

	CreatedAt time.Time `json:"created_at"`

	// Refs lists the containers that have mounted the volume or will mount it, oldest first.
	Refs []RuntimeRef `json:"refs,omitempty"`
}

// RuntimeRef records that a runtime uses a volume. Docker has one reference for each place where a
// container mounts the volume. Podman has one reference for all containers. Docker may send several
// Mount requests for the same id, for example for "docker cp" from a running container. It sends
// one Unmount request for each of them.
type RuntimeRef struct {
	ID    string    `json:"id"`    // id of the reference, which the runtime chose
	Alloc string    `json:"alloc"` // alloc of the claim that the reference needs
	Since time.Time `json:"since"`

	// More is the number of Mount requests for the id without an Unmount request, not counting the
	// first.
	More int `json:"more,omitempty"`

	// By identifies the process of the runtime that sent the Mount requests. It is empty if the
	// process is unknown.
	By string `json:"by,omitempty"`

	// Returned is set after the runtime has sent an Unmount request for every Mount request. The
	// agent then keeps the reference only while a mount namespace still contains the mount.
	Returned bool `json:"returned,omitempty"`
}

// RuntimeKey returns the key under which a runtime's volume is stored.
func RuntimeKey(runtime, name string) string { return runtime + "\x00" + name }

// Key returns the key under which the volume is stored.
func (v RuntimeVolume) Key() string { return RuntimeKey(v.Runtime, v.Name) }

// Ref returns the reference with the given id.
func (v RuntimeVolume) Ref(id string) (RuntimeRef, bool) {
	i := slices.IndexFunc(v.Refs, func(r RuntimeRef) bool { return r.ID == id })
	if i < 0 {
		return RuntimeRef{}, false
	}
	return v.Refs[i], true
}

// Mounting records a further Mount request for an id. The parameter by identifies the process of
// the runtime that sent the request. The alloc of a new reference is the name of the runtime. If
// each container has its own claim, the alloc also contains a part of the container's id.
//
// Podman sends one Mount request for all containers, and may repeat it at any time, so Mounting
// does not count podman's requests. A docker process sends no Unmount requests for the Mount
// requests of an earlier process, so its first Mount request starts the count again.
func (v RuntimeVolume) Mounting(id, by string, now time.Time) RuntimeVolume {
	v.Refs = slices.Clone(v.Refs)
	for i, r := range v.Refs {
		switch {
		case r.ID != id:
			continue
		case v.Runtime == plugin.RuntimePodman, r.Returned, r.byAnother(by):
			r.More = 0
		default:
			r.More++
		}

		r.Returned = false
		r.By = by
		v.Refs[i] = r
		return v
	}

	alloc := v.Runtime
	if v.Exclusive {
		alloc = v.ownAlloc(id)
	}

	v.Refs = append(v.Refs, RuntimeRef{ID: id, Alloc: alloc, Since: now, By: by})
	return v
}

// Unmounting records an Unmount request for an id. It ignores an unknown id, because the reference
// with this id has already been returned.
func (v RuntimeVolume) Unmounting(id, by string) RuntimeVolume {
	v.Refs = slices.Clone(v.Refs)
	for i, r := range v.Refs {
		if r.ID != id {
			continue
		}
		if r.More == 0 || r.byAnother(by) {
			v.Refs[i] = r.returned()
		} else {
			v.Refs[i].More--
		}
	}

	return v
}

// Returning marks the references for which match returns true as returned.
func (v RuntimeVolume) Returning(match func(RuntimeRef) bool) RuntimeVolume {
	v.Refs = slices.Clone(v.Refs)
	for i, r := range v.Refs {
		if match(r) {
			v.Refs[i] = r.returned()
		}
	}
	return v
}

// Unneeded returns the allocs whose references are all returned.
func (v RuntimeVolume) Unneeded() (allocs []string) {
	for _, r := range v.Refs {
		needed := slices.ContainsFunc(v.Refs, func(o RuntimeRef) bool { return o.Alloc == r.Alloc && !o.Returned })
		if !needed && !slices.Contains(allocs, r.Alloc) {
			allocs = append(allocs, r.Alloc)
		}
	}
	return allocs
}

// Settled removes the returned references. It keeps those of the allocs in keep, because a mount
// namespace still contains their mounts.
func (v RuntimeVolume) Settled(keep []string) RuntimeVolume {
	return v.Without(func(r RuntimeRef) bool { return r.Returned && !slices.Contains(keep, r.Alloc) })
}

func (r RuntimeRef) returned() RuntimeRef {
	r.More, r.Returned = 0, true
	return r
}

// byAnother reports whether a process other than by sent the Mount requests of a reference.
func (r RuntimeRef) byAnother(by string) bool { return r.By != "" && by != "" && r.By != by }

// shortID is the number of characters of a container's id that docker shows.
const shortID = 12

func (v RuntimeVolume) ownAlloc(id string) string {
	short := v.Runtime + "-" + id[:min(len(id), shortID)]
	taken := slices.ContainsFunc(v.Refs, func(r RuntimeRef) bool { return r.Alloc == short })
	if CheckID("alloc id", short) == nil && !taken {
		return short
	}
	sum := sha256.Sum256([]byte(id))
	return v.Runtime + "-" + hex.EncodeToString(sum[:])
}

// Without removes the references for which drop returns true.
func (v RuntimeVolume) Without(drop func(RuntimeRef) bool) RuntimeVolume {
	v.Refs = slices.DeleteFunc(slices.Clone(v.Refs), drop)
	return v
}

// Claimed reports whether any reference uses the claim of the given alloc.
func (v RuntimeVolume) Claimed(alloc string) bool {
	return slices.ContainsFunc(v.Refs, func(r RuntimeRef) bool { return r.Alloc == alloc })
}

// Owner returns the runtime as the owner of the volume's claims.
func (v RuntimeVolume) Owner() Owner {
	return Owner{Kind: OwnerRuntime, Runtime: v.Runtime, Volume: v.Name}
}

// ReadersOnly reports whether all access modes that the volume's options permit are read-only. In
// this case, the containers can only read, with or without the option "ro".
func (v RuntimeVolume) ReadersOnly(of Volume) bool {
	found := false
	for _, c := range of.Capabilities {
		if c.Attachment != call.FileSystem || v.Access != "" && c.Access != v.Access {
			continue
		}
		if c.Access.Writable() {
			return false
		}

		found = true
	}

	return found
}

// Request returns the request for the claim that a reference needs.
func (v RuntimeVolume) Request(alloc string, of Volume) Request {
	q := Request{
		Alloc: alloc,
		Terms: Terms{
			ReadOnly: v.ReadOnly || v.ReadersOnly(of), Mode: call.Capability{Access: v.Access, Attachment: call.FileSystem},
			Own: v.Own, Owner: v.Owner(),
		},
	}
	if q.ReadOnly { // a read-only claim cannot change the owner
		q.Own = v.Own.Explicit()
	}
	return q
}

// Differs returns the names of the options in which two requests for a volume differ. The names are
// the same as in the runtime's commands. A default owner does not count as an option.
func (v RuntimeVolume) Differs(o RuntimeVolume) (names []string) {
	has, wants := v.Own.Explicit(), o.Own.Explicit()
	for name, differs := range map[string]bool{
		"volume": v.VolumeID != o.VolumeID, "ro": v.ReadOnly != o.ReadOnly, "exclusive": v.Exclusive != o.Exclusive,
		"access_mode": v.Access != o.Access, "uid": has.UID != wants.UID, "gid": has.GID != wants.GID, "mode": has.Mode != wants.Mode,
	} {
		if differs {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	return names
}

// Check returns an error if the agent never stores such a value.
func (v RuntimeVolume) Check() error {
	var errs []error
	if v.Runtime != plugin.RuntimeDocker && v.Runtime != plugin.RuntimePodman {
		errs = append(errs, Errorf(ErrInvalid, "unknown runtime %q", v.Runtime))
	}

	errs = append(errs, CheckID("volume name", v.Name), CheckID("volume id", v.VolumeID), v.Own.Check())
	for i, r := range v.Refs {
		errs = append(errs, CheckID("alloc id", r.Alloc))
		if slices.ContainsFunc(v.Refs[:i], func(o RuntimeRef) bool { return o.ID == r.ID }) {
			errs = append(errs, Errorf(ErrInvalid, "reference %q is stored twice", r.ID))
		}
		if r.More < 0 {
			errs = append(errs, Errorf(ErrInvalid, "reference %q has a negative count of Mounts", r.ID))
		}
	}

	return errors.Join(errs...)
}
