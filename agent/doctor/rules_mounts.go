package doctor

import (
	"path/filepath"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// mounts compares the recorded mounts of mounted claims with the observed mounts.
func mounts(p Picture, f *findings) {
	for _, v := range p.Volumes {
		if v.Moving {
			continue
		}

		before := volume.SeenMount // the state of the previous mount, on which this mount depends
		for _, m := range v.mounts() {
			if m.good() {
				before = volume.SeenMount
				continue
			}
			// If a mount is dead or hangs, a bind mount of it is in the same state. Report both in
			// one finding.
			if m.sight.Seen != before || m.sight.Seen == volume.SeenMount || m.sight.Seen == volume.SeenNothing {
				amiss(f, v, m)
			}
			before = m.sight.Seen
		}
	}
}

// amiss reports a mount that differs from the recorded mount.
func amiss(f *findings, v Volume, m spot) {
	id := v.Record.Volume.ID
	look := func(g *Finding) *Finding { return g.do("volctl volume status %s", id) }
	repairs := "the agent mounts the volume again as soon as the plugin is ready"
	again := fix{kind: wake, volume: v.Record.Key()}

	switch m.sight.Seen {
	case volume.SeenNothing:
		g := f.add(MountMissing, Problem, id, m.path)
		look(g.what("nothing is mounted at %s (%s, volume %s)", m.path, m.what, quote(id)).then("programs that use this path write to the host's own disk. The data in the volume is safe, and %s", repairs)).
			fix("mount the volume again", again)
		if c := v.Beneath[m.path]; c.Holds != "" {
			f.add(LeftoverData, Warning, id, m.path).what("%s contains %s, and nothing is mounted there", m.path, c.Holds).
				then("these files are on the host's own disk: they were written while the volume was not mounted. They are hidden once the volume is mounted there again").do("ls -la %s", m.path)
		}
	case volume.SeenDead:
		look(f.add(MountDead, Problem, id, m.path).what("the mount at %s (%s, volume %s) is dead: %s", m.path, m.what, quote(id), m.sight.Detail).
			then("programs cannot open files there; %s. Programs with open files must then open them again", repairs)).fix("mount the volume again", again)
	case volume.SeenHung:
		look(f.add(MountHung, Problem, id, m.path).what("the mount at %s (%s, volume %s) hangs: %s", m.path, m.what, quote(id), m.sight.Detail).
			then("programs that use the mount wait. The agent does not touch the mount; it works again when the storage answers"))
	case volume.SeenMount:
		if m.rebacked() {
			f.add(MountOther, Problem, id, m.path).what("the block device at %s (%s, volume %s) shows %s, not %s: the loop device was detached, and its number now belongs to another file",
				m.path, m.what, quote(id), m.sight.Identity.Backing, m.made.Backing).
				then("programs that use this path read and write the other file; the data in the volume is safe").do("volctl volume detach %s --all", id)
			return
		}

		f.add(MountOther, Problem, id, m.path).what("the mount at %s (%s, volume %s) is not the mount that was made for the volume", m.path, m.what, quote(id)).
			then("programs that use this path may write to another file system. The agent neither uses nor unmounts this mount. Once it is gone, the agent mounts the volume again").
			commands(suggest.Command("findmnt %s", m.path), suggest.Command("umount %s", m.path))
	default:
		look(f.add(MountUnreadable, Warning, id, m.path).what("the mount at %s (%s, volume %s) cannot be examined: %s", m.path, m.what, quote(id), m.sight.Detail).
			then("it is unknown whether the mount works"))
	}
}

// unexplained returns the mounts below the directory of all mounts that belong to no record. It
// omits the agent's test mounts.
func (p Picture) unexplained() (all []Mounted) {
	known := p.explained()
	for _, m := range p.Mounts {
		if within(m.Path, p.Root) && !known[m.Path] && !m.Canary {
			all = append(all, m)
		}
	}
	return all
}

// unexplained reports mounts that belong to no record. Mounts inside a volume get a finding of a
// different kind.
func unexplained(p Picture, f *findings) {
	in := inside(p)
	for _, m := range p.unexplained() {
		if id, at := in(m.Path); id != "" {
			f.add(MountInside, Note, id, m.Path).what("%s (%s) is mounted inside volume %s, at %s", m.Source, m.FSType, quote(id), m.Path).
				then("the volume at %s cannot be unmounted before this mount is", at).do("umount %s", m.Path)
			continue
		}

		f.add(MountUnexplained, Warning, m.Path, m.Path).what("%s (%s) is mounted at %s, and no record explains it", m.Source, m.FSType, m.Path).
			then("the agent neither uses nor unmounts it, and refuses claims that need this path").commands(suggest.Command("findmnt %s", m.Path), suggest.Command("umount %s", m.Path))
	}
}

// inside returns a function that finds the volume that contains a path. The function returns the
// volume's id and the mount point.
func inside(p Picture) func(path string) (id, at string) {
	used := map[string]string{}
	for _, v := range p.Volumes {
		for _, m := range v.mounts() {
			used[m.path] = v.Record.Volume.ID
		}
	}

	return func(path string) (string, string) {
		for dir := filepath.Dir(path); within(dir, p.Root); dir = filepath.Dir(dir) {
			if id, ok := used[dir]; ok {
				return id, dir
			}
		}

		return "", ""
	}
}

// leftovers reports files and directories that remain in the directory of all mounts. It also
// reports volumes that are staged but have no claims.
func leftovers(p Picture, f *findings) {
	for _, l := range p.Leftovers {
		switch {
		case l.Err != nil:
			f.add(NotLooked, Warning, l.Path, l.Path).what("%s cannot be examined: %s", l.Path, line(l.Err)).
				then("it is unknown whether anything needs this path").do("ls -ld %s", l.Path)
		case l.Empty:
			f.add(LeftoverEmpty, Note, l.Path, l.Path).what("%s is empty, nothing is mounted there, and no record explains it", l.Path).
				then("it does no harm. A power failure or a manual unmount may have left it").do("rmdir %s", l.Path).
				fix("remove it, if it is still empty", fix{kind: remove, path: l.Path})
		default:
			f.add(LeftoverData, Warning, l.Path, l.Path).what("%s is a %s that contains %s, nothing is mounted there, and no record explains it", l.Path, l.Kind, l.Holds).
				then("a program wrote this data to the host's own disk, probably while a volume was not mounted there. The agent never removes it").do("ls -la %s", l.Path)
		}
	}

	for _, v := range p.Volumes {
		r := v.Record
		if !v.Moving && len(r.Claims) == 0 && r.Node.Staged != volume.Absent && !r.Leftover {
			f.add(StagedUnclaimed, Warning, r.Volume.ID, r.Volume.ID).what("volume %s is staged at %s (%s), but has no claim", quote(r.Volume.ID), r.Node.StagingPath, r.Node.Staged).
				then("the volume stays on this host, and other hosts cannot use it").do("volctl volume status %s", r.Volume.ID).
				fix("unstage the volume", fix{kind: wake, volume: r.Key()})
		}
	}
}

// notes checks the notes, from which the agent adopts claims after a loss of the database.
func notes(p Picture, f *findings) {
	for _, n := range p.Notes {
		id := n.Record.Volume.ID
		switch {
		case n.Bad != nil && n.Claimed:
			f.add(NoteBad, Warning, id, n.Path).what("the note of the claim of %s on volume %s is invalid: %s", quote(n.Alloc), quote(id), line(n.Bad)).
				then("if the state database were lost, the agent could not adopt this claim").do("ls -l %s", n.Path).fix("write it again", fix{kind: renote, note: n})
		case n.Bad != nil:
			f.add(NoteBad, Note, n.Path, n.Path).what("the note %s is invalid, and no claim explains it: %s", n.Path, line(n.Bad)).
				then("nothing uses it").do("rm %s", n.Path)
		case n.Claimed:
			f.add(NoteMissing, Warning, id, n.Path).what("there is no note for the claim of %s on volume %s", quote(n.Alloc), quote(id)).
				then("if the state database were lost, the agent could not adopt this claim").do("ls -ld %s", filepath.Dir(n.Path)).fix("write it", fix{kind: renote, note: n})
		default:
			f.add(NoteStray, Note, n.Path, n.Path).what("the note %s describes a claim of %s on volume %s, but this claim does not exist", n.Path, quote(n.Alloc), quote(id)).
				then("if the state database were lost and the same mount existed, the agent would adopt this claim").do("rm %s", n.Path).
				fix("remove it, if the claim still does not exist", fix{kind: renote, note: n})
		}
	}
}
