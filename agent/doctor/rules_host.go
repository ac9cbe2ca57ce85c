package doctor

import (
	"slices"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/volume"
)

// devices checks the block devices under volumes that are on this host.
func devices(p Picture, f *findings) {
	known := p.explained()
	for _, v := range p.Volumes {
		id := v.Record.Volume.ID
		for _, d := range v.Record.Node.Devices {
			dev := d.Number
			b, looked := v.Blocks[dev]
			if !looked {
				continue
			}
			name := dev
			if b.Name != "" {
				name = "/dev/" + b.Name
			}
			switch {
			case b.Gone:
				f.add(DeviceGone, Problem, id, id+"/"+dev).what("block device %s of volume %s is gone", dev, quote(id)).
					then("what was not written to it yet is lost; reads and writes fail until the volume is mounted anew").do("volctl volume detach %s --all", id)
			case b.Deleted:
				f.add(DeviceBacking, Problem, id, id+"/"+dev).what("%s of volume %s is backed by %s, which was deleted", name, quote(id), b.Backing).
					then("all data in it is lost for good once it is unmounted: copy it away before that").do("losetup -l %s", name)
			}
			if !b.Gone && !wanted(v.Record) {
				elsewhere(p, f, v, dev, known)
			}
		}
	}
}

// orphans reports unused loop devices with a file in the data dir.
func orphans(p Picture, f *findings) {
	if p.MountsErr != nil || len(p.Tests) > 0 {
		return // it is unknown whether something uses them
	}

	for _, l := range p.Loops {
		if !within(l.Backing, p.Database.Dir) || p.serves(l) || slices.ContainsFunc(p.Mounts, l.isUsedBy) {
			continue
		}

		name := "/dev/" + l.Name
		g := f.add(DeviceOrphan, Warning, l.Backing, name).do("losetup -d %s", name)
		if l.Deleted {
			g.what("%s shows %s, which was deleted, and no volume uses it", name, l.Backing).
				then("the device keeps the file's space; its data is lost once it is detached, so copy away what is needed before that")
			continue
		}

		g.what("%s shows %s, and no volume uses it", name, l.Backing).then("the volume that the file belongs to cannot be deleted; detaching the device loses no data")
	}
}

// isUsedBy reports whether a mount shows the device's file system or its node.
func (l Loop) isUsedBy(m Mounted) bool {
	return m.Device == l.Device || m.Source == "/dev/"+l.Name || m.Root == "/"+l.Name
}

func wanted(r volume.Record) bool {
	return slices.ContainsFunc(r.Ordered(), func(c volume.Claim) bool { return c.Wanted })
}

// elsewhere reports a device that cannot leave the host because another program has mounted it too.
func elsewhere(p Picture, f *findings, v Volume, dev string, known map[string]bool) {
	id := v.Record.Volume.ID
	for _, m := range p.Mounts {
		if m.Device == dev && !known[m.Path] && !within(m.Path, p.Root) {
			f.add(DeviceElsewhere, Warning, id, m.Path).what("device %s of volume %s is also mounted at %s", dev, quote(id), m.Path).
				then("nobody has a claim on the volume any more, and it cannot leave this host before that is unmounted").do("umount %s", m.Path)
		}
	}
}

// guards reports directories that refuse writes although no record and no entry plans a mount
// there. If the entries or the mounts cannot be read completely, it reports nothing.
func guards(p Picture, f *findings) {
	if p.EntriesErr != nil || p.MountsErr != nil {
		return
	}

	for _, g := range p.Guards {
		named := p.explained()[g.Dir] || slices.ContainsFunc(p.Entries, func(e fstab.Entry) bool { return e.Dir == g.Dir })
		if named || slices.ContainsFunc(p.Mounts, func(m Mounted) bool { return m.Path == g.Dir }) {
			continue
		}

		f.add(GuardStale, Note, g.Dir, g.Dir).what("%s refuses writes, and nothing says that a volume is mounted there", g.Dir).
			then("nobody can write to it").do("chattr -i %s", g.Dir).fix("let it be written to again", fix{kind: unguard, path: g.Dir})
	}
}

// entries checks the entries for volumes in fstab and mount units.
func entries(p Picture, f *findings) {
	for _, w := range p.Faults {
		g := f.add(w.Kind, Severity(w.Severity), w.Subject, w.Subject).what("%s", w.What).then("%s", w.Then)
		g.Do = w.Do
	}

	if p.EntriesErr != nil {
		f.add(fstab.Unread, Warning, "agent", "fstab").what("what is to be mounted cannot be read in full: %s", line(p.EntriesErr)).
			then("what is wrong there is not found").do("ls -l /etc/fstab /etc/systemd/system")
	}
	volumes, plugins := map[string]string{}, map[string]bool{}
	for _, v := range p.Volumes {
		volumes[v.Record.Volume.ID] = v.Record.Volume.PluginID
	}

	for _, g := range p.Plugins {
		plugins[g.ID] = true
	}

	for _, e := range p.Entries {
		id := fstab.VolumeOf(e)
		plugin, known := volumes[id]
		switch {
		case !known && volume.CheckID("volume id", id) == nil:
			f.add(fstab.BadVolume, Problem, e.Dir, e.Dir).what("%s: there is no volume %s", e.Place(), quote(id)).
				then("nothing is mounted at %s", e.Dir).do("volctl volume list")
		case known && !plugins[plugin]:
			f.add(fstab.NoPlugin, Problem, e.Dir, e.Dir).what("%s: plugin %s of volume %s does not exist", e.Place(), quote(plugin), quote(id)).
				then("the volume cannot be mounted at %s", e.Dir).do("volctl plugin list")
		}
	}
}

// unmet reports settings of the configuration that the agent could not apply.
func unmet(p Picture, f *findings) {
	for _, u := range p.Unmet {
		g := f.add(u.Kind, Problem, u.Subject, u.Subject)
		g.Do = u.Do
		switch u.Kind {
		case VolumeFile:
			g.what("%s, %s", u.Subject, u.Why).then("what it says of the volume is not in force")
		default:
			g.what("%s", u.Why).then("nobody who reads the metrics there sees this host")
		}
	}
}
