package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"
)

// RuntimeVolume is a volume as a container runtime knows it, under a name of its own. A
// volume has at most one name in each runtime.
type RuntimeVolume struct {
	Runtime  string `json:"runtime"` // "docker" or "podman"
	Name     string `json:"name"`
	VolumeID string `json:"volume_id"`

	// How it is claimed, for all containers alike.
	ReadOnly  bool       `json:"read_only,omitempty"`
	Exclusive bool       `json:"exclusive,omitempty"` // one claim a container, in place of one for all
	Access    AccessMode `json:"access_mode,omitempty"`
	Own       Ownership  `json:"own,omitzero"`

	CreatedAt time.Time `json:"created_at"`
	// Refs are the containers that have it mounted, or are about to, the oldest first.
	Refs []RuntimeRef `json:"refs,omitempty"`
}

// RuntimeRef is one use of a volume by a runtime: docker has one for each place where a
// container mounts the volume, podman has one for all containers. Docker may ask several
// times to mount for the same id ("docker cp" does so for a running container), and gives
// each of these Mounts back.
type RuntimeRef struct {
	ID    string    `json:"id"`    // the runtime's, opaque
	Alloc string    `json:"alloc"` // whose claim it is
	Since time.Time `json:"since"`
	// More is how many Mounts for the id, beyond the first, were not given back.
	More int `json:"more,omitempty"`
	// By is the process of the runtime that sent the Mounts; empty if it is not known.
	By string `json:"by,omitempty"`
	// Returned reports that every Mount was given back. The reference then stays only as
	// long as a mount namespace shows the mount.
	Returned bool `json:"returned,omitempty"`
}

// RuntimeKey is what a runtime's volume is stored under.
func RuntimeKey(runtime, name string) string { return runtime + "\x00" + name }

// Key is what the volume is stored under.
func (v RuntimeVolume) Key() string { return RuntimeKey(v.Runtime, v.Name) }

// Ref returns the reference with an id.
func (v RuntimeVolume) Ref(id string) (RuntimeRef, bool) {
	i := slices.IndexFunc(v.Refs, func(r RuntimeRef) bool { return r.ID == id })
	if i < 0 {
		return RuntimeRef{}, false
	}
	return v.Refs[i], true
}

// Mounting counts one more Mount for an id; by is the process of the runtime that asked. The
// alloc of the claim is the runtime's name or, where each container has a claim of its own,
// that and a part of the container's id.
//
// Podman asks once for all containers, whatever it asked before, so its Mounts are not
// counted. A process of docker's that did not send the earlier Mounts never gives them
// back, so its own Mount is the first one again.
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

// Unmounting counts one Mount less for an id. An id that is not known was given back before.
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

// Returning marks the references that match as given back.
func (v RuntimeVolume) Returning(match func(RuntimeRef) bool) RuntimeVolume {
	v.Refs = slices.Clone(v.Refs)
	for i, r := range v.Refs {
		if match(r) {
			v.Refs[i] = r.returned()
		}
	}
	return v
}

// Unneeded are the allocs whose references are all given back.
func (v RuntimeVolume) Unneeded() (allocs []string) {
	for _, r := range v.Refs {
		needed := slices.ContainsFunc(v.Refs, func(o RuntimeRef) bool { return o.Alloc == r.Alloc && !o.Returned })
		if !needed && !slices.Contains(allocs, r.Alloc) {
			allocs = append(allocs, r.Alloc)
		}
	}
	return allocs
}

// Settled is the volume without the references that are given back. Those of the allocs in
// keep stay: a mount namespace still shows their mount.
func (v RuntimeVolume) Settled(keep []string) RuntimeVolume {
	return v.Without(func(r RuntimeRef) bool { return r.Returned && !slices.Contains(keep, r.Alloc) })
}

func (r RuntimeRef) returned() RuntimeRef {
	r.More, r.Returned = 0, true
	return r
}

// byAnother reports whether another process than by sent the Mounts of a reference.
func (r RuntimeRef) byAnother(by string) bool { return r.By != "" && by != "" && r.By != by }

// shortID is how much of a container's id docker shows.
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

// Without is the volume less the references that drop says so of.
func (v RuntimeVolume) Without(drop func(RuntimeRef) bool) RuntimeVolume {
	v.Refs = slices.DeleteFunc(slices.Clone(v.Refs), drop)
	return v
}

// Claimed reports whether a reference needs the claim of an alloc.
func (v RuntimeVolume) Claimed(alloc string) bool {
	return slices.ContainsFunc(v.Refs, func(r RuntimeRef) bool { return r.Alloc == alloc })
}

// Owner is who the claims of the volume belong to.
func (v RuntimeVolume) Owner() Owner {
	return Owner{Kind: OwnerRuntime, Runtime: v.Runtime, Volume: v.Name}
}

// ReadersOnly reports whether the volume can only be claimed for reading in the mode that
// its options ask for. All containers then only read, whether or not "ro" was given.
func (v RuntimeVolume) ReadersOnly(of Volume) bool {
	found := false
	for _, c := range of.Capabilities {
		if c.Attachment != FileSystem || v.Access != "" && c.Access != v.Access {
			continue
		}
		if c.Access.Writable() {
			return false
		}
		found = true
	}
	return found
}

// Request asks for the claim of a reference to a volume.
func (v RuntimeVolume) Request(alloc string, of Volume) Request {
	q := Request{
		Alloc: alloc, ReadOnly: v.ReadOnly || v.ReadersOnly(of), Access: v.Access, Attachment: FileSystem, Own: v.Own, Owner: v.Owner(),
	}
	if q.ReadOnly { // a reader's claim changes no owner
		q.Own = v.Own.Explicit()
	}
	return q
}

// Differs names the options in which two requests for a volume differ, in the runtimes'
// words. A default owner is no option.
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

// Check refuses what cannot have been stored.
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
