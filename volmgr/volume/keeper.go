package volume

import (
	"slices"
	"strconv"

	"github.com/volagent/volagent/volmgr/remedy"
)

// Past returns a copy of the record in which every claim whose owner has ended counts as being
// detached. The agent may not have requested or stored that detach yet. If owners is nil, all
// owners count as alive.
func Past(r Record, owners Owners) Record {
	if owners == nil {
		return r
	}

	for _, c := range r.Claims {
		if c.Wanted && c.Owner.Mortal() && owners.Gone(c.Keeper()) {
			r = r.with(c.unwanted())
		}
	}

	return r
}

// unwanted returns the claim in the state at the beginning of its detach.
func (c Claim) unwanted() Claim {
	c.Wanted, c.State = false, Unpublishing
	return c
}

// freedBy returns the remedy that ends a wanted claim, which frees the volume.
func (c Claim) freedBy(id string) remedy.Remedy {
	switch o := c.Keeper(); {
	case o.Process():
		return remedy.Of(remedy.EndOwner, strconv.Itoa(o.PID), id, c.Alloc)
	case o.ByMount():
		return remedy.Of(remedy.Unmount, o.Dir) // if the mount is busy, umount(8) names the services that use it
	case o.Kind == OwnerMount: // the bind mount does not exist at present
		return remedy.Of(remedy.ForceDetach, id, c.Alloc)
	case o.Kind == OwnerUnit:
		return remedy.Of(remedy.StopOwner, c.Owner.Unit, id, c.Alloc)
	case o.Kind == OwnerRuntime:
		return remedy.Of(remedy.StopOwners, c.Owner.Runtime, c.Owner.Volume, id, c.Alloc)
	default:
		return remedy.Of(remedy.DetachClaim, id, c.Alloc)
	}
}

// MayDetach decides whether a request may detach a claim. Without force, it refuses if the keeper
// of the claim is alive, or if its state is unknown. The parameter v describes the keeper.
func MayDetach(id string, c Claim, v OwnerView, force bool) error {
	if force || !c.Wanted || !c.Owner.Mortal() || v.Life == LifeGone {
		return nil
	}

	o, is := c.Keeper(), "running"
	switch {
	case o.ByMount():
		is = "there"
	case o.Kind == OwnerMount && !o.Process():
		is = "being made anew"
	}

	state := "which is " + is
	if v.Life != LifeRunning {
		state = "of which it is not known whether it is " + is
	}

	return Errorf(ErrRefused, "the claim of %q on volume %q is owned by %s, %s", c.Alloc, id, o.Describe(v), state).
		WithRemedy(c.freedBy(id))
}

// Keeper returns the owner whose end would end the claim at present. Every check for the end of an
// owner uses the keeper. If the owner is not a mount, the keeper is the owner itself. If the owner
// is a mount, there are three cases:
//
//   - Until the bind mount is made, the keeper is the process that requested it.
//   - While the bind mount is recorded, the keeper is that mount.
//   - While the agent replaces the bind mount, the keeper has neither a pid nor a mount, so it
//     cannot end.
//     The agent removes a mount from the record before it unmounts the mount.
//
// Two keepers are the same if they are equal.
func (c Claim) Keeper() Owner {
	o := c.Owner
	if o.Kind != OwnerMount {
		return o
	}

	o.Dir = c.At
	switch {
	case c.Bound == Present && c.BoundMount != nil:
		o.PID, o.StartTime, o.Mount = 0, 0, *c.BoundMount
	case c.State != Pending:
		o.PID, o.StartTime = 0, 0
	}

	return o
}

// vanished reports whether another program has unmounted the mount that owns the claim. The
// parameter bind is the observed state of the own directory.
func (c Claim) vanished(bind Sight) bool {
	return c.Wanted && c.Keeper().ByMount() && bind.Seen == SeenNothing
}

// ownedAs reports whether a repeated request names the same owner as the claim. If the owner is a
// mount that already exists, any process may repeat the request.
func (c Claim) ownedAs(o Owner) bool {
	if c.Owner.Kind == OwnerMount && o.Kind == OwnerMount && c.State != Pending {
		return true
	}
	return c.Owner == o
}

// GuardedDir identifies an own directory that has a guard, or that will get one. Path is the path
// of the own directory in its claim. A user may have renamed the directory since then.
type GuardedDir struct {
	Path   string `json:"path"`
	Device string `json:"dev,omitempty"`  // "major:minor" when the directory was recorded
	Inode  uint64 `json:"ino,omitempty"`  // 0 if only the path is known
	FSType string `json:"fs,omitempty"`   // file system type as in the mount table
	FSID   string `json:"fsid,omitempty"` // f_fsid from statfs(2)

	// Handle is the file handle from name_to_handle_at(2). It is empty if the file system provides
	// no handles.
	Handle     []byte `json:"handle,omitempty"`
	HandleType int32  `json:"handle_type,omitempty"`
}

// Same reports whether both values identify the same directory. If only the path of one directory
// is known, Same compares the paths.
func (g GuardedDir) Same(o GuardedDir) bool {
	if g.Inode == 0 || o.Inode == 0 {
		return g.Path == o.Path
	}
	return g.Inode == o.Inode && g.FSID == o.FSID && g.HandleType == o.HandleType && string(g.Handle) == string(o.Handle)
}

// GuardsAt returns the guarded directories that were recorded for a path. There are several if a
// user renamed the first directory and created another one with the same path. A record of an
// earlier release contains only the path.
func (r Record) GuardsAt(path string) []GuardedDir {
	all := slices.DeleteFunc(slices.Clone(r.GuardDirs), func(g GuardedDir) bool { return g.Path != path })
	if len(all) == 0 && slices.Contains(r.Guards, path) {
		all = append(all, GuardedDir{Path: path})
	}
	return all
}

// AllGuards returns all guarded directories of the record.
func (r Record) AllGuards() []GuardedDir {
	var all []GuardedDir
	for _, path := range r.Guards {
		all = append(all, r.GuardsAt(path)...)
	}
	return all
}

// Guarding reports whether the record contains the guarded directory dir.
func (r Record) Guarding(dir GuardedDir) bool { return slices.ContainsFunc(r.AllGuards(), dir.Same) }

// addGuard returns the record with one more guarded directory.
func addGuard(r Record, dir GuardedDir) Record {
	if dir.Inode != 0 && !slices.ContainsFunc(r.GuardsAt(dir.Path), func(g GuardedDir) bool { return g.Inode != 0 && g.Same(dir) }) {
		r.GuardDirs = append(slices.Clone(r.GuardDirs), dir)
	}
	if !slices.Contains(r.Guards, dir.Path) {
		r.Guards = append(slices.Clone(r.Guards), dir.Path)
	}
	return r
}

// Unguarding returns the record without the guarded directories at a path.
func (r Record) Unguarding(path string) Record {
	r.Guards = slices.DeleteFunc(slices.Clone(r.Guards), func(g string) bool { return g == path })
	r.GuardDirs = slices.DeleteFunc(slices.Clone(r.GuardDirs), func(g GuardedDir) bool { return g.Path == path })
	return r
}
