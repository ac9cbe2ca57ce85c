package doctor

import (
	"path/filepath"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// mounts compares the recorded mounts of mounted claims with the observed ones.
func mounts(p Picture, f *findings) {
	for _, v := range p.Volumes {
		if v.Moving {
			continue
		}

		before := volume.SeenMount // the observation one mount further down
		for _, m := range v.mounts() {
			if m.good() {
				before = volume.SeenMount
				continue
			}
			// A bind of a mount that is dead or hangs is in the same state. Both are one finding.
			if m.sight.Seen != before || m.sight.Seen == volume.SeenMount || m.sight.Seen == volume.SeenNothing {
				amiss(f, v, m)
			}
			before = m.sight.Seen
		}
	}
}

// amiss reports one mount that is not as recorded.
func amiss(f *findings, v Volume, m spot) {
	id := v.Record.Volume.ID
	look := func(g *Finding) *Finding { return g.do("volctl volume status %s", id) }
	repairs := "it is made again as soon as the plugin is ready"
	again := fix{kind: wake, volume: v.Record.Key()}

	switch m.sight.Seen {
	case volume.SeenNothing:
		g := f.add(MountMissing, Problem, id, m.path)
		look(g.what("nothing is mounted at %s (%s, volume %s)", m.path, m.what, quote(id)).then("whoever uses that path writes to the host's own disk; the data in the volume is safe, and %s", repairs)).
			fix("have it mounted again", again)
		if c := v.Beneath[m.path]; c.Holds != "" {
			f.add(LeftoverData, Warning, id, m.path).what("%s holds %s, and nothing is mounted there", m.path, c.Holds).
				then("that was written while the volume was missing: it is on the host's own disk, and is hidden once the volume is mounted there again").do("ls -la %s", m.path)
		}
	case volume.SeenDead:
		look(f.add(MountDead, Problem, id, m.path).what("the mount at %s (%s, volume %s) is dead: %s", m.path, m.what, quote(id), m.sight.Detail).
			then("everything that is opened there fails; %s, and whoever has it open must open it again", repairs)).fix("have it mounted again", again)
	case volume.SeenHung:
		look(f.add(MountHung, Problem, id, m.path).what("the mount at %s (%s, volume %s) hangs: %s", m.path, m.what, quote(id), m.sight.Detail).
			then("whoever uses it waits; it is left alone, and is as before when the storage answers again"))
	case volume.SeenMount:
		if m.rebacked() {
			f.add(MountOther, Problem, id, m.path).what("the block device at %s (%s, volume %s) shows %s, not %s as when it was mounted: somebody detached it, and its number went to that file",
				m.path, m.what, quote(id), m.sight.Identity.Backing, m.made.Backing).
				then("whoever uses that path reads and writes that file; the data in the volume is safe").do("volctl volume detach %s --all", id)
			return
		}

		f.add(MountOther, Problem, id, m.path).what("what is mounted at %s (%s, volume %s) is not what was mounted for it", m.path, m.what, quote(id)).
			then("whoever uses that path may write to something else; it is neither used nor unmounted, and the volume is mounted there again once it is gone").
			commands(suggest.Command("findmnt %s", m.path), suggest.Command("umount %s", m.path))
	default:
		look(f.add(MountUnreadable, Warning, id, m.path).what("the mount at %s (%s, volume %s) cannot be looked at: %s", m.path, m.what, quote(id), m.sight.Detail).
			then("whether it is as it should be is not known"))
	}
}

// unexplained returns the mounts below the root whose paths are not known.
func (p Picture) unexplained() (all []Mounted) {
	known := p.explained()
	for _, m := range p.Mounts {
		if within(m.Path, p.Root) && !known[m.Path] && !m.Canary {
			all = append(all, m)
		}
	}
	return all
}

// unexplained reports those mounts.
func unexplained(p Picture, f *findings) {
	in := inside(p)
	for _, m := range p.unexplained() {
		if id, at := in(m.Path); id != "" {
			f.add(MountInside, Note, id, m.Path).what("%s (%s) is mounted inside volume %s, at %s", m.Source, m.FSType, quote(id), m.Path).
				then("the volume at %s cannot be unmounted before that is", at).do("umount %s", m.Path)
			continue
		}

		f.add(MountUnexplained, Warning, m.Path, m.Path).what("%s (%s) is mounted at %s, and no record explains it", m.Source, m.FSType, m.Path).
			then("it is neither used nor unmounted by the agent, and a claim that needs that path is refused").commands(suggest.Command("findmnt %s", m.Path), suggest.Command("umount %s", m.Path))
	}
}

// inside returns a function that finds the volume in whose mount a path lies, and the path of that
// mount.
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

// leftovers reports files and directories below the root where nothing is mounted.
func leftovers(p Picture, f *findings) {
	for _, l := range p.Leftovers {
		switch {
		case l.Err != nil:
			f.add(NotLooked, Warning, l.Path, l.Path).what("%s cannot be looked at: %s", l.Path, line(l.Err)).
				then("whether it is of any use is not known").do("ls -ld %s", l.Path)
		case l.Empty:
			f.add(LeftoverEmpty, Note, l.Path, l.Path).what("%s is empty, nothing is mounted there, and no record explains it", l.Path).
				then("nothing suffers from it; a mount that ended in disorder left it").do("rmdir %s", l.Path).
				fix("remove it, if it is still empty", fix{kind: remove, path: l.Path})
		default:
			f.add(LeftoverData, Warning, l.Path, l.Path).what("%s is a %s that holds %s, nothing is mounted there, and no record explains it", l.Path, l.Kind, l.Holds).
				then("somebody wrote that to the host's own disk, most likely while a volume was missing there; it is never removed by the agent").do("ls -la %s", l.Path)
		}
	}

	for _, v := range p.Volumes {
		r := v.Record
		if !v.Moving && len(r.Claims) == 0 && r.Node.Staged != volume.Absent && !r.Leftover {
			f.add(StagedUnclaimed, Warning, r.Volume.ID, r.Volume.ID).what("volume %s is staged at %s (%s), and nobody has a claim on it", quote(r.Volume.ID), r.Node.StagingPath, r.Node.Staged).
				then("it stays on this host, and cannot be used on another one").do("volctl volume status %s", r.Volume.ID).
				fix("have it unstaged", fix{kind: wake, volume: r.Key()})
		}
	}
}

// notes checks the notes from which the agent adopts claims if the database is lost.
func notes(p Picture, f *findings) {
	for _, n := range p.Notes {
		id := n.Record.Volume.ID
		switch {
		case n.Bad != nil && n.Claimed:
			f.add(NoteBad, Warning, id, n.Path).what("the note of the claim of %s on volume %s makes no sense: %s", quote(n.Alloc), quote(id), line(n.Bad)).
				then("the claim would be missed if the state database was lost").do("ls -l %s", n.Path).fix("write it anew", fix{kind: renote, note: n})
		case n.Bad != nil:
			f.add(NoteBad, Note, n.Path, n.Path).what("the note %s makes no sense, and no claim explains it: %s", n.Path, line(n.Bad)).
				then("nothing uses it").do("rm %s", n.Path)
		case n.Claimed:
			f.add(NoteMissing, Warning, id, n.Path).what("there is no note of the claim of %s on volume %s", quote(n.Alloc), quote(id)).
				then("the claim would be missed if the state database was lost").do("ls -ld %s", filepath.Dir(n.Path)).fix("write it", fix{kind: renote, note: n})
		default:
			f.add(NoteStray, Note, n.Path, n.Path).what("the note %s is of a claim of %s on volume %s that there is not", n.Path, quote(n.Alloc), quote(id)).
				then("if the state database was lost, and the same mount was there, that claim would be adopted").do("rm %s", n.Path).
				fix("remove it, if there is no such claim", fix{kind: renote, note: n})
		}
	}
}
