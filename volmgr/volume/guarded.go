package volume

import "slices"

// GuardedDir is an own directory that has a guard or is about to get one. Path is the own
// directory of the claim. The directory may have been renamed since.
type GuardedDir struct {
	Path   string `json:"path"`
	Device string `json:"dev,omitempty"`  // "major:minor" when it was recorded
	Inode  uint64 `json:"ino,omitempty"`  // 0 if only the path is known
	FSType string `json:"fs,omitempty"`   // as in the mount table
	FSID   string `json:"fsid,omitempty"` // f_fsid of statfs(2)

	// Handle comes from name_to_handle_at(2). It is empty if the file system provides none.
	Handle     []byte `json:"handle,omitempty"`
	HandleType int32  `json:"handle_type,omitempty"`
}

// Same reports whether both describe the same directory. If one of them is known only by its path,
// the paths decide.
func (g GuardedDir) Same(o GuardedDir) bool {
	if g.Inode == 0 || o.Inode == 0 {
		return g.Path == o.Path
	}
	return g.Inode == o.Inode && g.FSID == o.FSID && g.HandleType == o.HandleType && string(g.Handle) == string(o.Handle)
}

// GuardsAt returns the recorded directories for a path. There are several if the first was renamed
// and another one took its place. A record of an earlier release has only the path.
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

// AllGuards returns all recorded directories.
func (r Record) AllGuards() []GuardedDir {
	var all []GuardedDir
	for _, path := range r.Guards {
		all = append(all, r.GuardsAt(path)...)
	}
	return all
}

// Guarding reports whether a directory is recorded.
func (r Record) Guarding(dir GuardedDir) bool { return slices.ContainsFunc(r.AllGuards(), dir.Same) }

// guardingToo returns the record with one more guarded directory.
func (r Record) guardingToo(dir GuardedDir) Record {
	if dir.Inode != 0 && !slices.ContainsFunc(r.GuardsAt(dir.Path), func(g GuardedDir) bool { return g.Inode != 0 && g.Same(dir) }) {
		r.GuardDirs = append(slices.Clone(r.GuardDirs), dir)
	}
	if !slices.Contains(r.Guards, dir.Path) {
		r.Guards = append(slices.Clone(r.Guards), dir.Path)
	}
	return r
}

// Unguarding returns the record without the guarded directories of a path.
func (r Record) Unguarding(path string) Record {
	r.Guards = slices.DeleteFunc(slices.Clone(r.Guards), func(g string) bool { return g == path })
	r.GuardDirs = slices.DeleteFunc(slices.Clone(r.GuardDirs), func(g GuardedDir) bool { return g.Path == path })
	return r
}
