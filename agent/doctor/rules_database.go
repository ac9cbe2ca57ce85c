package doctor

import (
	"fmt"
	"strconv"
	"time"
)

// database checks the state database and the files beside it.
func database(p Picture, f *findings) {
	db := p.Database
	if db.Refused != "" {
		f.add(DBForeign, Problem, "agent", db.Refused).what("%s", line(db.Fault)).
			then("the agent refuses claims, detaches and other changes until it is restarted. It then continues with its current state, unless the other file replaces state.db while the agent is stopped").
			do("systemctl restart volagent")
	} else if db.Fault != nil {
		f.add(DBCommit, Problem, "agent", "state.db").what("the agent cannot write the state database: %s", line(db.Fault)).
			then("no volume can be claimed; existing mounts stay. The agent keeps the results of running steps in memory until it can write again").do("df %s", db.Dir)
	} else if db.Check != nil {
		f.add(DBCheck, Problem, "agent", "state.db").what("the state database fails its check: %s", line(db.Check)).
			then("the agent continues with the state in its memory. Its next start may have to set the file aside and adopt the mounted volumes").do("volagent inspect --data-dir %s", db.Dir)
	}

	if db.NoLog != nil {
		f.add(DBLog, Warning, "agent", "state.log").what("cannot open state.log: %s", line(db.NoLog)).
			then("no data is lost; every claim and detach waits for a disk sync").do("ls -ld %s", db.Dir+"/state.log")
	}
	if held := adopted(p); !db.Loss.At.IsZero() && held > 0 {
		why := ""
		if db.Loss.Why != "" {
			why = ": " + db.Loss.Why
		}
		f.add(DBLost, Warning, "agent", "state.db").what("the state database was lost, and the agent made a new one on %s%s. Adopted claims that still exist: %d", db.Loss.At.Format(time.RFC3339), why, held).
			then("adopted claims have no owner, and count as writers until they are detached; %s", fromCopy(db.Loss)).do("volctl claim list")
	}

	for _, path := range db.Kept {
		f.add(DBDamaged, Note, "agent", path).what("the agent keeps a damaged state database as %s", path).
			then("nothing uses this file; it takes up space, and may help to find the cause of the damage").do("rm %s", path)
	}

	for _, path := range db.Foreign {
		if path != db.Refused {
			f.add(DBForeign, Note, "agent", path).what("a file replaced the state database while the agent used it; the agent keeps that file as %s", path).
				then("nothing uses this file; it takes up space").do("rm %s", path)
		}
	}

	for _, path := range db.Old {
		f.add(DBOld, Note, "agent", path).what("the agent keeps a copy of the state database from before a migration as %s", path).
			then("the copy is needed only to return to the earlier release, with the state of that time").do("rm %s", path)
	}
}

// fromCopy says which records the agent restored from an automatic copy.
func fromCopy(l Loss) string {
	if l.Copy.IsZero() {
		return "volumes without claims, and plugins that were registered at run time, must be registered again"
	}
	return fmt.Sprintf("volumes without claims, plugins that were registered at run time, and pending calls come from an automatic copy of %s", l.Copy.Format(time.RFC3339))
}

// adopted counts the claims that the agent adopted from mounts after it had lost the database.
func adopted(p Picture) (n int) {
	for _, v := range p.Volumes {
		for _, c := range v.Record.Claims {
			if c.Adopted {
				n++
			}
		}
	}

	return n
}

// These are the limits for free space on the disk of the data dir. A commit writes a few pages.
// When the database file must grow, it doubles its size.
const (
	leastFree   = 16 << 20
	nearlyFull  = 20 // the doctor warns if less than 1/20 is free
	leastInodes = 1000
)

// disk checks the free space and the free inodes of the data dir.
func disk(p Picture, f *findings) {
	d := p.Database.Disk
	at := p.Database.Dir
	left := fmt.Sprintf("%s has %s left, of %s", at, room(d.Free), room(d.Total))

	switch {
	case d.Err != nil:
		f.add(NotLooked, Warning, "agent", at).what("cannot find out how much space is free in %s: %s", at, line(d.Err)).
			then("if the disk is full, no volume can be claimed").do("df %s", at)
	case d.Total == 0:
	case d.Free < leastFree:
		f.add(DiskFull, Problem, "agent", at).what("%s", left).
			then("once no space is left, no volume can be claimed; detaches and mounted volumes still work").do("df %s", at)
	case d.Inodes > 0 && d.FreeInodes < leastInodes:
		f.add(DiskFull, Problem, "agent", at).what("%s has %d inodes left, of %d", at, d.FreeInodes, d.Inodes).
			then("once no inode is left, the agent cannot make directories for mounts").do("df -i %s", at)
	case d.Free < d.Total/nearlyFull && d.Free < 1<<30:
		f.add(DiskFull, Warning, "agent", at).what("%s", left).then("once no space is left, no volume can be claimed").do("df %s", at)
	}
}

// room formats a number of bytes with the largest suitable unit.
func room(bytes uint64) string {
	n, unit := float64(bytes), 0
	for units := []string{"B", "KiB", "MiB", "GiB", "TiB"}; ; unit++ {
		if n < 1024 || unit == len(units)-1 {
			return strconv.FormatFloat(n, 'f', min(unit, 1), 64) + units[unit]
		}
		n /= 1024
	}
}

// looked reports if the mount table or the directory of all mounts could not be read completely.
func looked(p Picture, f *findings) {
	for what, err := range map[string]error{"the mount table": p.MountsErr, "the directory of all mounts": p.LeftoversErr} {
		if err != nil {
			about := p.Root
			if p.MountsErr != nil {
				about = "mounts"
			}
			f.add(NotLooked, Warning, "agent", about).what("%s cannot be read completely: %s", what, line(err)).
				then("the agent does not find problems there").do("ls -la %s", p.Root)
		}
	}
}

// halted reports if the agent does not call plugins.
func halted(p Picture, f *findings) {
	if p.Halt == "" {
		return
	}

	found := f.add(HostHalted, Problem, "agent", "agent").what("the agent sends no call to any plugin: %s", p.Halt).
		then("nothing is mounted or unmounted; existing mounts stay")
	if p.OtherDataDir != "" {
		found.do("volagent inspect --data-dir %s", p.OtherDataDir)
	} else {
		found.do("systemctl restart volagent")
	}
}

// system checks the mount namespace of the agent, the agent's unit, and the mount helper.
func system(p Picture, f *findings) {
	s := p.System
	if s.Namespace != 0 && s.Init != 0 && s.Namespace != s.Init {
		f.add(HostNamespace, Problem, "agent", "mnt").what("the agent is in another mount namespace than process 1").
			then("its mounts do not appear on the host. A setting of its unit causes this, such as PrivateTmp=, ProtectSystem= or ReadWritePaths=").
			do("systemctl cat volagent.service")
	}

	if s.Unit != "" && s.State != "" && s.State != "enabled" && s.State != "enabled-runtime" && s.State != "static" && s.State != "alias" && s.State != "generated" {
		f.add(HostUnit, Warning, "agent", s.Unit).what("%s is %s", s.Unit, s.State).
			then("after a reboot systemd does not start the agent, and no volume is mounted").do("systemctl enable %s", s.Unit)
	}
	if s.Helper != "" {
		f.add(HostHelper, Problem, "agent", "mount.csi").what("%s", s.Helper).
			then("mount(8) and systemd cannot mount the volumes that fstab and mount units name").do("ls -l /sbin/mount.csi /sbin/umount.csi")
	}
}
