package volume

import "slices"

// GuardedDir is a directory that refuses writes while nothing is mounted there, or is about
// to. The path is the one of the claim; the directory may have been renamed since.
type GuardedDir struct {
	Path   string `json:"path"`
	Device string `json:"dev,omitempty"`  // "major:minor", as of then
	Inode  uint64 `json:"ino,omitempty"`  // 0 where only the path is known
	FSType string `json:"fs,omitempty"`   // as in the mount table
	FSID   string `json:"fsid,omitempty"` // f_fsid of statfs(2)
	// Handle is that of name_to_handle_at(2); empty where the file system gives none.
	Handle     []byte `json:"handle,omitempty"`
	HandleType int32  `json:"handle_type,omitempty"`
}

// Same reports whether two are one directory. Of one that is known by its path alone the
// path decides.
func (g GuardedDir) Same(o GuardedDir) bool {
	if g.Inode == 0 || o.Inode == 0 {
		return g.Path == o.Path
	}
	return g.Inode == o.Inode && g.FSID == o.FSID && g.HandleType == o.HandleType && string(g.Handle) == string(o.Handle)
}

// GuardsAt are the directories that the record names for a path: more than one where the
// first was renamed and another took its place. A record of an earlier release has the
// path alone.
func (r Record) GuardsAt(path string) []GuardedDir {
	var all []GuardedDir
	for _, g := range r.GuardDirs {
		if g.Path == path {
			all = append(all, g)
		}
	}
	if len(all) == 0 && slices.Contains(r.Guards, path) {
		all = append(all, GuardedDir{Path: path})
	}
	return all
}

// AllGuards are the directories that the record names.
func (r Record) AllGuards() []GuardedDir {
	var all []GuardedDir
	for _, path := range r.Guards {
		all = append(all, r.GuardsAt(path)...)
	}
	return all
}

// Guarding reports whether the record names a directory.
func (r Record) Guarding(dir GuardedDir) bool { return slices.ContainsFunc(r.AllGuards(), dir.Same) }

// guardingToo returns the record with one more directory.
func (r Record) guardingToo(dir GuardedDir) Record {
	if dir.Inode != 0 && !slices.ContainsFunc(r.GuardsAt(dir.Path), func(g GuardedDir) bool { return g.Inode != 0 && g.Same(dir) }) {
		r.GuardDirs = append(slices.Clone(r.GuardDirs), dir)
	}
	if !slices.Contains(r.Guards, dir.Path) {
		r.Guards = append(slices.Clone(r.Guards), dir.Path)
	}
	return r
}

// Unguarding returns the record without the directories of a path.
func (r Record) Unguarding(path string) Record {
	r.Guards = slices.DeleteFunc(slices.Clone(r.Guards), func(g string) bool { return g == path })
	r.GuardDirs = slices.DeleteFunc(slices.Clone(r.GuardDirs), func(g GuardedDir) bool { return g.Path == path })
	return r
}
