package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/volume"
)

// Picture is all that was looked at. The rules know nothing else.
type Picture struct {
	Now  time.Time
	Root string // where volumes are mounted
	Halt string
	// OtherDataDir is that of the agent whose mounts and plugins are still here; empty if
	// the agent is not halted because of one.
	OtherDataDir string

	Database     Database
	Volumes      []Volume
	Unmet        []Unmet
	Debts        []Debt
	Tests        []Test
	Loops        []Loop    // that have a file
	Mounts       []Mounted // the whole table
	MountsErr    error
	Leftovers    []Leftover
	LeftoversErr error
	Notes        []NoteFile
	Plugins      []Plugin
	System       System
	Entries      []fstab.Entry
	EntriesErr   error
	Faults       []fstab.Fault // what is wrong with them, as far as they themselves tell
	Guards       []Guard
	Runtimes     Runtimes
}

// Guard is a directory that refuses writes because the agent made it so, while nothing
// of a volume was mounted there.
type Guard struct {
	Dir     string
	Volumes []string // whose records name it
}

// Database is the state of the state database.
type Database struct {
	Dir   string // the data dir
	Fault error  // why the last commit failed
	Check error  // what is wrong with the file
	NoLog error  // why there is no log beside it
	Loss  Loss
	Kept  []string // damaged files beside it
	// Foreign are files that were found in place of the open ones. Refused is the one
	// because of which the agent refuses changes; empty if it does not.
	Foreign []string
	Refused string
	Old     []string // and copies from before a migration
	Disk    Disk
}

// Loss is what is known of a database that was lost.
type Loss struct {
	At              time.Time // zero: none was
	Why             string
	Volumes, Claims int       // that were adopted
	Copy            time.Time // when the automatic copy was made that all else comes from; zero if there was none
}

// Disk is how much room there is.
type Disk struct {
	Err                error
	Total, Free        uint64 // bytes; Total is 0 where it is not known
	Inodes, FreeInodes uint64 // 0 where there is no such number
}

// Volume is a record with what is seen of it.
type Volume struct {
	Record   volume.Record
	Observed volume.Observed
	Attempt  *volume.Attempt
	Owners   map[string]volume.OwnerView // of wanted claims, by alloc
	Blocks   map[string]Block            // its block devices in this boot
	Beneath  map[string]Contents         // what lies where a mount is missing, by path
	// Moving is set where the record changed while it was looked at, or a step is in hand
	// that may change it: what was seen need not belong to it.
	Moving bool
}

// atWork reports whether a step is in hand that did not fail before: what it has made, or
// undone, is on record only when it is over.
func (v Volume) atWork() bool { return v.Attempt != nil && v.Attempt.Running && v.Attempt.Err == nil }

// Block is a block device as the kernel shows it.
type Block struct {
	Name    string // as under /dev; may be empty
	Gone    bool
	Backing string // the file behind a loop device
	Deleted bool   // and that has no name any more
}

// Loop is a loop device that has a file.
type Loop struct {
	Device string // "major:minor"
	Block
}

// Contents is what is at a path where nothing is mounted.
type Contents struct {
	Mounted bool
	Kind    string // "directory", "file", "device", "other"; empty where nothing is
	Empty   bool   // as an unmount leaves it
	Holds   string // what is in it, in words
}

// Mounted is one line of the mount table.
type Mounted struct {
	Path   string
	Device string
	Root   string // of what is mounted, in its file system
	FSType string
	Source string
	Canary bool // the agent's own, for a moment
}

// Leftover is a name where volumes are mounted that no record explains.
type Leftover struct {
	Path string
	Contents
	Err error
}

// NoteFile is a note that is not as it should be.
type NoteFile struct {
	Path   string
	Record volume.Record // whose; of one that makes no sense without a claim, empty
	Alloc  string
	Bad    error // what makes no sense about it
	// Claimed is set where the claim exists: its note is missing, or bad.
	Claimed bool
}

// Debt is what a forced deregister left.
type Debt struct {
	Record volume.Record
	Since  time.Time
	Left   []string // one sentence each; empty if it may only come late
	Calls  volume.PendingCalls
}

// Test is what a test of a plugin left, or is at.
type Test struct {
	Plugin  string
	Running bool
	Name    string // of its volume
	Begun   time.Time
	Paths   []string
}

// Plugin is a plugin at this moment.
type Plugin struct {
	ID       string
	View     volume.PluginView
	Since    time.Time
	Runtime  string // of a container; empty if it is in none
	Units    []Unit // of a plugin that is run as some
	Pending  string
	Warnings []string
}

// Unit is a unit of systemd's.
type Unit struct {
	Name   string
	Before []string // units that it comes before
	Asked  bool     // systemd did tell
}

// System is the host around the agent.
type System struct {
	// Namespace and Init are the inode numbers of the mount namespaces of the agent and
	// of process 1; 0 where they cannot be told.
	Namespace, Init uint64
	// Unit is the agent's own; empty where it is not run by systemd. State is
	// UnitFileState, empty where it cannot be told.
	Unit, State string
	// Helper says what is wrong with the mount helper, empty if nothing.
	Helper string
}

// Unmet is what the configuration asks for and the agent could not do.
type Unmet struct {
	Kind    string // VolumeFile or MetricsAddress
	Subject string // a file, or "agent"
	Why     string
	Do      string
}

// claims counts them.
func (p Picture) claims() (n int) {
	for _, v := range p.Volumes {
		n += len(v.Record.Claims)
	}
	return n
}

// explained are the paths where a record, a debt or a test has, or may have, a mount.
func (p Picture) explained() map[string]bool {
	known := map[string]bool{p.Root: true}
	add := func(path string) {
		if path != "" {
			known[path] = true
		}
	}
	record := func(r volume.Record) {
		if r.Held() {
			add(r.Node.StagingPath)
		}
		for _, c := range r.Claims {
			add(c.Target)
			for _, dir := range volume.TargetDirs(c.Target) {
				add(dir)
			}
			add(c.At)
		}
		for _, w := range r.Node.Watches {
			add(w.Path)
		}
		for _, o := range r.Node.Owed {
			add(o.Path)
		}
		for _, u := range r.Node.Unseen {
			add(u.Path)
		}
	}
	for _, v := range p.Volumes {
		record(v.Record)
	}
	for _, d := range p.Debts {
		record(d.Record)
	}
	for _, t := range p.Tests {
		for _, path := range t.Paths {
			add(path)
			for _, dir := range volume.TargetDirs(path) {
				add(dir)
			}
		}
	}
	return known
}

// spot is a path where a claim that is taken has a mount, and what is seen there.
type spot struct {
	what  string // "staged", "mounted for ALLOC", "bound for ALLOC"
	path  string
	made  *volume.MountIdentity // nil once it is on record that it is to be made again
	sight volume.Sight
}

// good reports whether what is seen is what was made or, while that is on its way, a
// mount that works.
func (m spot) good() bool {
	return m.sight.Seen == volume.SeenMount && (m.made == nil || m.sight.Is(m.made))
}

// rebacked reports whether the very mount that was made, of a loop device's node, leads
// to another file by now.
func (m spot) rebacked() bool {
	if m.made == nil || m.made.Backing == "" || m.sight.Identity.Backing == m.made.Backing {
		return false
	}
	seen := m.sight
	seen.Identity.Backing = m.made.Backing
	return seen.Is(m.made)
}

// mounts are those of a volume that are in use, the staged one first.
func (v Volume) mounts() (all []spot) {
	r := v.Record
	for _, c := range r.Ordered() {
		if !c.Wanted || c.State != volume.Taken {
			continue
		}
		if len(all) == 0 && r.Node.Mount != nil {
			all = append(all, spot{"staged", r.Node.StagingPath, r.Node.Mount, v.Observed.Staging})
		}
		all = append(all, spot{"mounted for " + c.Alloc, c.Target, c.Mount, v.Observed.Targets[c.Alloc]})
		if c.At != "" {
			all = append(all, spot{"bound for " + c.Alloc, c.At, c.BoundMount, v.Observed.Binds[c.Alloc]})
		}
	}
	return all
}

// within reports whether a path lies in a directory, or is it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// settleLoops drops the loop devices that are detached by now, and those of volumes whose
// work began meanwhile.
func (p *Picture) settleLoops(now []Loop, records []volume.Record) {
	late := Picture{}
	for _, r := range records {
		late.Volumes = append(late.Volumes, Volume{Record: r})
	}
	p.Loops = slices.DeleteFunc(p.Loops, func(l Loop) bool { return !slices.Contains(now, l) || late.serves(l) })
}

// serves reports whether a loop device may belong to a volume that is on this host, or on
// its way: one whose external id is part of the file's path.
func (p Picture) serves(l Loop) bool {
	belongs := func(r volume.Record) bool {
		id := r.Volume.ExternalID
		return id != "" && (len(r.Claims) > 0 || r.Held() || r.Debt) && slices.Contains(strings.Split(l.Backing, "/"), id)
	}
	return slices.ContainsFunc(p.Volumes, func(v Volume) bool { return belongs(v.Record) }) ||
		slices.ContainsFunc(p.Debts, func(d Debt) bool { return belongs(d.Record) })
}
