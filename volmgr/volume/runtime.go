package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// RuntimeVolume is a volume as a container runtime knows it, under the runtime's own name. A volume
// has at most one name in each runtime.
type RuntimeVolume struct {
	Runtime  string `json:"runtime"` // "docker" or "podman"
	Name     string `json:"name"`
	VolumeID string `json:"volume_id"`

	// The properties of its claims, which are the same for all containers.
	ReadOnly  bool            `json:"read_only,omitempty"`
	Exclusive bool            `json:"exclusive,omitempty"` // one claim for each container, in place of one for all
	Access    call.AccessMode `json:"access_mode,omitempty"`
	Own       Ownership       `json:"own,omitzero"`

	CreatedAt time.Time `json:"created_at"`

	// Refs are the containers that mounted the volume or are about to, oldest first.
	Refs []RuntimeRef `json:"refs,omitempty"`
}

// RuntimeRef is one use of a volume by a runtime. Docker has one for each place where a container
// mounts the volume. Podman has one for all containers. Docker may send several Mounts for the same
// id ("docker cp" does so for a running container). It returns each of these Mounts with an
// Unmount.
type RuntimeRef struct {
	ID    string    `json:"id"`    // the runtime's id, opaque
	Alloc string    `json:"alloc"` // the alloc of the claim
	Since time.Time `json:"since"`

	// More is the number of Mounts for the id, beyond the first, that were not returned.
	More int `json:"more,omitempty"`

	// By is the process of the runtime that sent the Mounts. It is empty if that is unknown.
	By string `json:"by,omitempty"`

	// Returned is set once every Mount was returned. The reference then stays only as long as a
	// mount namespace shows the mount.
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

// Mounting counts one more Mount for an id. by is the process of the runtime that sent it. The
// alloc of the claim is the name of the runtime. If each container has its own claim, a part of the
// container's id is appended to that name.
//
// Podman sends one Mount for all containers and repeats it regardless of earlier ones, so its
// Mounts are not counted. A docker process does not return the Mounts that another process sent, so
// its own first Mount starts the count again.
func (v RuntimeVolume) Mounting(id, by string, now time.Time) RuntimeVolume {
	v.Refs = slices.Clone(v.Refs)
	for i, r := range v.Refs {
		switch {
		case r.ID != id:
			continue
		case v.Runtime == RuntimePodman, r.Returned, r.byAnother(by):
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

// Unmounting counts one Mount less for an id. An unknown id was returned before.
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

// Returning marks the references that match as returned.
func (v RuntimeVolume) Returning(match func(RuntimeRef) bool) RuntimeVolume {
	v.Refs = slices.Clone(v.Refs)
	for i, r := range v.Refs {
		if match(r) {
			v.Refs[i] = r.returned()
		}
	}
	return v
}

// Unneeded returns the allocs whose references were all returned.
func (v RuntimeVolume) Unneeded() (allocs []string) {
	for _, r := range v.Refs {
		needed := slices.ContainsFunc(v.Refs, func(o RuntimeRef) bool { return o.Alloc == r.Alloc && !o.Returned })
		if !needed && !slices.Contains(allocs, r.Alloc) {
			allocs = append(allocs, r.Alloc)
		}
	}
	return allocs
}

// Settled returns the volume without the returned references. Those of the allocs in keep stay,
// because a mount namespace still shows their mount.
func (v RuntimeVolume) Settled(keep []string) RuntimeVolume {
	return v.Without(func(r RuntimeRef) bool { return r.Returned && !slices.Contains(keep, r.Alloc) })
}

func (r RuntimeRef) returned() RuntimeRef {
	r.More, r.Returned = 0, true
	return r
}

// byAnother reports whether a process other than by sent the Mounts of a reference.
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

// Without returns the volume without the references that drop selects.
func (v RuntimeVolume) Without(drop func(RuntimeRef) bool) RuntimeVolume {
	v.Refs = slices.DeleteFunc(slices.Clone(v.Refs), drop)
	return v
}

// Claimed reports whether a reference needs the claim of an alloc.
func (v RuntimeVolume) Claimed(alloc string) bool {
	return slices.ContainsFunc(v.Refs, func(r RuntimeRef) bool { return r.Alloc == alloc })
}

// Owner returns the owner of the volume's claims.
func (v RuntimeVolume) Owner() Owner {
	return Owner{Kind: OwnerRuntime, Runtime: v.Runtime, Volume: v.Name}
}

// ReadersOnly reports whether the volume can only be claimed for reading in the mode that its
// options ask for. All containers then only read, with or without the option "ro".
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
	if q.ReadOnly { // a claim that only reads cannot change the owner
		q.Own = v.Own.Explicit()
	}
	return q
}

// Differs returns the options in which two requests for a volume differ, as the runtimes spell
// them. A default owner is not an option.
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

// Check refuses a value that cannot have been stored.
func (v RuntimeVolume) Check() error {
	var errs []error
	if v.Runtime != RuntimeDocker && v.Runtime != RuntimePodman {
		errs = append(errs, Errorf(ErrInvalid, "unknown runtime %q", v.Runtime))
	}

	errs = append(errs, CheckID("volume name", v.Name), CheckID("volume id", v.VolumeID), v.Own.Check())
	for i, r := range v.Refs {
		errs = append(errs, CheckID("alloc id", r.Alloc))
		if slices.ContainsFunc(v.Refs[:i], func(o RuntimeRef) bool { return o.ID == r.ID }) {
			errs = append(errs, Errorf(ErrInvalid, "reference %q stands there twice", r.ID))
		}
		if r.More < 0 {
			errs = append(errs, Errorf(ErrInvalid, "reference %q has a negative count of Mounts", r.ID))
		}
	}

	return errors.Join(errs...)
}
