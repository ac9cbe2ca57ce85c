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
			then("nothing can be claimed, detached or changed until the agent is started again; it then goes on with what it knows now, unless somebody puts the other file in its place while it is stopped").
			do("systemctl restart volagent")
	} else if db.Fault != nil {
		f.add(DBCommit, Problem, "agent", "state.db").what("the state database cannot be written: %s", line(db.Fault)).
			then("no volume can be claimed; what is mounted stays, and what happens meanwhile is kept in memory and written when there is a way").do("df %s", db.Dir)
	} else if db.Check != nil {
		f.add(DBCheck, Problem, "agent", "state.db").what("the state database does not pass its check: %s", line(db.Check)).
			then("the agent goes on with what it has in memory; its next start may have to set the file aside and adopt what is mounted").do("volagent inspect --data-dir %s", db.Dir)
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
		f.add(DBLost, Warning, "agent", "state.db").what("the state database was lost and made anew on %s%s; %d claims that were adopted then are held", db.Loss.At.Format(time.RFC3339), why, held).
			then("they have no owner and count as writers until they are detached; %s", fromCopy(db.Loss)).do("volctl claim list")
	}

	for _, path := range db.Kept {
		f.add(DBDamaged, Note, "agent", path).what("a damaged state database is kept as %s", path).
			then("nothing uses it; it takes room, and may be of use to whoever looks into how it came about").do("rm %s", path)
	}

	for _, path := range db.Foreign {
		if path != db.Refused {
			f.add(DBForeign, Note, "agent", path).what("a file that somebody put in place of the state database while the agent used it is kept as %s", path).
				then("nothing uses it; it takes room").do("rm %s", path)
		}
	}

	for _, path := range db.Old {
		f.add(DBOld, Note, "agent", path).what("a copy of the state database from before a migration is kept as %s", path).
			then("it is of use only to go back to the release that wrote it, with what was so then").do("rm %s", path)
	}
}

// fromCopy describes the fate of the other contents of the lost database.
func fromCopy(l Loss) string {
	if l.Copy.IsZero() {
		return "volumes that were free then, and plugins that were registered at run time, have to be registered again"
	}
	return fmt.Sprintf("volumes that were free then, plugins that were registered at run time, and pending calls are those of an automatic copy of %s", l.Copy.Format(time.RFC3339))
}

// adopted returns the number of claims that were adopted after a loss.
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

// The space that the agent needs on the disk of its data dir. A commit writes a few pages, and a
// growing file doubles its size.
const (
	leastFree   = 16 << 20
	nearlyFull  = 20 // warn if less than 1/20 is free
	leastInodes = 1000
)

// disk checks the free space for the state database.
func disk(p Picture, f *findings) {
	d := p.Database.Disk
	at := p.Database.Dir
	left := fmt.Sprintf("%s has %s left, of %s", at, room(d.Free), room(d.Total))

	switch {
	case d.Err != nil:
		f.add(NotLooked, Warning, "agent", at).what("how much room there is in %s cannot be told: %s", at, line(d.Err)).
			then("a full disk would keep volumes from being claimed").do("df %s", at)
	case d.Total == 0:
	case d.Free < leastFree:
		f.add(DiskFull, Problem, "agent", at).what("%s", left).
			then("when nothing is left no volume can be claimed; detaches and mounted volumes continue").do("df %s", at)
	case d.Inodes > 0 && d.FreeInodes < leastInodes:
		f.add(DiskFull, Problem, "agent", at).what("%s has %d inodes left, of %d", at, d.FreeInodes, d.Inodes).
			then("when none is left no directory can be made to mount a volume at").do("df -i %s", at)
	case d.Free < d.Total/nearlyFull && d.Free < 1<<30:
		f.add(DiskFull, Warning, "agent", at).what("%s", left).then("when nothing is left no volume can be claimed").do("df %s", at)
	}
}

// room formats bytes as one number with a unit.
func room(bytes uint64) string {
	n, unit := float64(bytes), 0
	for units := []string{"B", "KiB", "MiB", "GiB", "TiB"}; ; unit++ {
		if n < 1024 || unit == len(units)-1 {
			return strconv.FormatFloat(n, 'f', min(unit, 1), 64) + units[unit]
		}
		n /= 1024
	}
}

// looked reports parts of the host that could not be checked.
func looked(p Picture, f *findings) {
	for what, err := range map[string]error{"the mount table": p.MountsErr, "what lies where volumes are mounted": p.LeftoversErr} {
		if err != nil {
			about := p.Root
			if p.MountsErr != nil {
				about = "mounts"
			}
			f.add(NotLooked, Warning, "agent", about).what("%s cannot be read in full: %s", what, line(err)).
				then("what is not as recorded there is not found").do("ls -la %s", p.Root)
		}
	}
}

// halted reports an agent that sends no calls.
func halted(p Picture, f *findings) {
	if p.Halt == "" {
		return
	}

	found := f.add(HostHalted, Problem, "agent", "agent").what("the agent sends no call to any plugin: %s", p.Halt).
		then("nothing is mounted or unmounted; what is mounted stays")
	if p.OtherDataDir != "" {
		found.do("volagent inspect --data-dir %s", p.OtherDataDir)
	} else {
		found.do("systemctl restart volagent")
	}
}

// system checks the host around the agent.
func system(p Picture, f *findings) {
	s := p.System
	if s.Namespace != 0 && s.Init != 0 && s.Namespace != s.Init {
		f.add(HostNamespace, Problem, "agent", "mnt").what("the agent is in another mount namespace than process 1").
			then("what it mounts is not seen on the host; a setting of its unit does that, as PrivateTmp=, ProtectSystem= or ReadWritePaths=").
			do("systemctl cat volagent.service")
	}

	if s.Unit != "" && s.State != "" && s.State != "enabled" && s.State != "enabled-runtime" && s.State != "static" && s.State != "alias" && s.State != "generated" {
		f.add(HostUnit, Warning, "agent", s.Unit).what("%s is %s", s.Unit, s.State).
			then("after a reboot no agent is started, and no volume is mounted").do("systemctl enable %s", s.Unit)
	}
	if s.Helper != "" {
		f.add(HostHelper, Problem, "agent", "mount.csi").what("%s", s.Helper).
			then("mount(8) and systemd cannot mount what fstab and mount units say of volumes").do("ls -l /sbin/mount.csi /sbin/umount.csi")
	}
}
