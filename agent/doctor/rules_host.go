package doctor

import (
	"slices"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/volume"
)

// devices checks the block devices of the volumes on this host.
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
					then("data that was not written yet is lost; reads and writes fail until the volume is mounted again").do("volctl volume detach %s --all", id)
			case b.Deleted:
				f.add(DeviceBacking, Problem, id, id+"/"+dev).what("%s of volume %s is backed by %s, which was deleted", name, quote(id), b.Backing).
					then("all data of the volume is lost once it is unmounted: copy the data first").do("losetup -l %s", name)
			}
			if !b.Gone && !wanted(v.Record) {
				elsewhere(p, f, v, dev, known)
			}
		}
	}
}

// orphans reports loop devices that are not in use although their backing files are in the data
// dir.
func orphans(p Picture, f *findings) {
	if p.MountsErr != nil || len(p.Tests) > 0 {
		return // the rule cannot know which devices are in use
	}

	for _, l := range p.Loops {
		if !within(l.Backing, p.Database.Dir) || p.serves(l) || slices.ContainsFunc(p.Mounts, l.isUsedBy) {
			continue
		}

		name := "/dev/" + l.Name
		g := f.add(DeviceOrphan, Warning, l.Backing, name).do("losetup -d %s", name)
		if l.Deleted {
			g.what("%s shows the file %s, which was deleted, and no volume uses the device", name, l.Backing).
				then("the device keeps the file's space. The data is lost once the device is detached: copy away the data that you need first")
			continue
		}

		g.what("%s shows the file %s, and no volume uses the device", name, l.Backing).then("the volume of this file cannot be deleted; detaching the device loses no data")
	}
}

// isUsedBy reports whether m is a mount of the file system on the device, or of the device node
// itself.
func (l Loop) isUsedBy(m Mounted) bool {
	return m.Device == l.Device || m.Source == "/dev/"+l.Name || m.Root == "/"+l.Name
}

func wanted(r volume.Record) bool {
	return slices.ContainsFunc(r.Ordered(), func(c volume.Claim) bool { return c.Wanted })
}

// elsewhere reports mounts of the volume's device that other programs have made. While such a mount
// exists, the device must stay on this host.
func elsewhere(p Picture, f *findings, v Volume, dev string, known map[string]bool) {
	id := v.Record.Volume.ID
	for _, m := range p.Mounts {
		if m.Device == dev && !known[m.Path] && !within(m.Path, p.Root) {
			f.add(DeviceElsewhere, Warning, id, m.Path).what("device %s of volume %s is also mounted at %s", dev, quote(id), m.Path).
				then("the volume has no claim any more, but it cannot leave this host before this mount is unmounted").do("umount %s", m.Path)
		}
	}
}

// guards reports guarded directories that no claim and no entry needs. If the entries or the mount
// table could not be read completely, some directories may still be needed. guards then reports
// nothing.
func guards(p Picture, f *findings) {
	if p.EntriesErr != nil || p.MountsErr != nil {
		return
	}

	known := p.explained()
	for _, g := range p.Guards {
		named := known[g.Dir] || slices.ContainsFunc(p.Entries, func(e fstab.Entry) bool { return e.Dir == g.Dir })
		if named || slices.ContainsFunc(p.Mounts, func(m Mounted) bool { return m.Path == g.Dir }) {
			continue
		}

		f.add(GuardStale, Note, g.Dir, g.Dir).what("%s refuses writes, but no claim, fstab line or mount unit mounts a volume there", g.Dir).
			then("no program can write to this directory").do("chattr -i %s", g.Dir).fix("make it writable again", fix{kind: unguard, path: g.Dir})
	}
}

// entries checks the entries for volumes in fstab and in mount units.
func entries(p Picture, f *findings) {
	for _, w := range p.Faults {
		g := f.add(w.Kind, Severity(w.Severity), w.Subject, w.Subject).what("%s", w.What).then("%s", w.Then)
		g.Do = w.Do
	}

	if p.EntriesErr != nil {
		f.add(fstab.Unread, Warning, "agent", "fstab").what("the entries for volumes in fstab and mount units cannot be read completely: %s", line(p.EntriesErr)).
			then("the agent does not find problems there").do("ls -l /etc/fstab /etc/systemd/system")
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
		case !known && e.Has("class"):
			// The first mount creates the volume.
		case !known && volume.CheckID("volume id", id) == nil:
			f.add(fstab.BadVolume, Problem, e.Dir, e.Dir).what("%s: there is no volume %s", e.Place(), quote(id)).
				then("nothing is mounted at %s", e.Dir).do("volctl volume list")
		case known && !plugins[plugin]:
			f.add(fstab.NoPlugin, Problem, e.Dir, e.Dir).what("%s: plugin %s of volume %s does not exist", e.Place(), quote(plugin), quote(id)).
				then("the volume cannot be mounted at %s", e.Dir).do("volctl plugin list")
		}
	}
}

// unmet reports settings that the agent could not apply.
func unmet(p Picture, f *findings) {
	for _, u := range p.Unmet {
		g := f.add(u.Kind, Problem, u.Subject, u.Subject)
		g.Do = u.Do
		switch u.Kind {
		case VolumeFile:
			g.what("%s, %s", u.Subject, u.Why).then("the agent does not apply this file to its volume")
		case ClassFile:
			g.what("%s, %s", u.Subject, u.Why).then("no volume can be created with this class")
		default:
			g.what("%s", u.Why).then("a reader of the metrics at this address does not see this host")
		}
	}
}
