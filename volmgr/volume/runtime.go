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

// RuntimeRef is one use of a volume by a runtime: docker has one for each container,
// podman one for all.
type RuntimeRef struct {
	ID    string    `json:"id"`    // the runtime's, opaque
	Alloc string    `json:"alloc"` // whose claim it is
	Since time.Time `json:"since"`
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

// Referring is the volume with one more reference. The alloc of its claim is the
// runtime's name or, where each container has a claim of its own, that and what tells the
// ids of its containers apart.
func (v RuntimeVolume) Referring(id string, now time.Time) RuntimeVolume {
	if _, had := v.Ref(id); had {
		return v
	}
	alloc := v.Runtime
	if v.Exclusive {
		alloc = v.ownAlloc(id)
	}
	v.Refs = append(slices.Clone(v.Refs), RuntimeRef{ID: id, Alloc: alloc, Since: now})
	return v
}

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

// Request asks for the claim of a reference.
func (v RuntimeVolume) Request(alloc string) Request {
	return Request{
		Alloc: alloc, ReadOnly: v.ReadOnly, Access: v.Access, Attachment: FileSystem, Own: v.Own, Owner: v.Owner(),
	}
}

// Differs names the options in which two requests for a volume differ, in the runtimes'
// words.
func (v RuntimeVolume) Differs(o RuntimeVolume) (names []string) {
	for name, differs := range map[string]bool{
		"volume": v.VolumeID != o.VolumeID, "ro": v.ReadOnly != o.ReadOnly, "exclusive": v.Exclusive != o.Exclusive,
		"access_mode": v.Access != o.Access, "uid": v.Own.UID != o.Own.UID, "gid": v.Own.GID != o.Own.GID, "mode": v.Own.Mode != o.Own.Mode,
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
	}
	return errors.Join(errs...)
}
