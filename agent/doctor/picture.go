package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Picture is the data of one examination. The rules read no other data.
type Picture struct {
	Now  time.Time
	Root string // the directory of all volume mounts
	Halt string

	// OtherDataDir is the data dir of another agent whose mounts or plugins are still on this host.
	// It is empty if the agent is not halted, or if it is halted for another reason.
	OtherDataDir string

	Database     Database
	Volumes      []Volume
	Unmet        []Unmet
	Deregistered []Deregistered
	Tests        []Test
	Loops        []Loop    // the loop devices that have a backing file
	Mounts       []Mounted // the complete mount table
	MountsErr    error
	Leftovers    []Leftover
	LeftoversErr error
	Notes        []NoteFile
	Plugins      []Plugin
	System       System
	Entries      []fstab.Entry
	EntriesErr   error
	Faults       []fstab.Fault // faults of the entries, judged without the volumes and plugins
	Guards       []Guard
	Runtimes     Runtimes
}

// Guard is a directory that the agent has protected against writes while no volume is mounted
// there.
type Guard struct {
	Dir     string
	Volumes []string // the volumes whose records name it
}

// Database describes the state database and the files beside it.
type Database struct {
	Dir   string // the data dir
	Fault error  // the reason why the last commit failed
	Check error  // the problem that a check of the file found
	NoLog error  // the reason why the agent does not use state.log
	Loss  Loss
	Kept  []string // damaged databases that the agent set aside

	// Foreign are files that replaced the open database files. Refused is the one that makes the
	// agent refuse changes. Refused is empty if the agent accepts changes.
	Foreign []string
	Refused string
	Old     []string // copies of the database from before a migration
	Disk    Disk
}

// Loss describes the loss of a database.
type Loss struct {
	At              time.Time // zero: no loss
	Why             string
	Volumes, Claims int // the numbers of adopted volumes and claims

	// Copy is the time of the automatic copy from which the agent restored the other records. It is
	// zero if there was no such copy.
	Copy time.Time
}

// Disk describes the space on the disk of the data dir.
type Disk struct {
	Err                error
	Total, Free        uint64 // bytes; Total is 0 if it is unknown
	Inodes, FreeInodes uint64 // 0 if the file system has no such number
}

// Volume is the record of a volume, with the observations of its mounts, owners and devices.
type Volume struct {
	Record   volume.Record
	Observed volume.Observed
	Attempt  *volume.Attempt
	Owners   map[string]volume.OwnerView // the states of the owners of wanted claims, by alloc
	Blocks   map[string]Block            // the volume's block devices, by device number; empty if they are from an earlier boot
	Beneath  map[string]Contents         // the contents of the paths where a mount is missing, by path

	// Moving is set if the record changed during the check, or if a running step may change it. The
	// observations may then belong to another state of the record.
	Moving bool
}

// atWork reports whether a step is running whose previous try did not fail. The record shows the
// effect of a step only after the step has ended.
func (v Volume) atWork() bool { return v.Attempt != nil && v.Attempt.Running && v.Attempt.Err == nil }

// Block is a block device as the kernel shows it.
type Block struct {
	Name    string // the name under /dev; may be empty
	Gone    bool
	Backing string // the file behind a loop device
	Deleted bool   // the backing file was deleted
}

// Loop is a loop device that has a backing file.
type Loop struct {
	Device string // "major:minor"
	Block
}

// Contents describes the file or directory at a path.
type Contents struct {
	Mounted bool
	Kind    string // "directory", "file", "device", "other"; empty if the path does not exist
	Empty   bool   // set if nothing is in it, as in a directory after an unmount
	Holds   string // description of the contents
}

// Mounted is one line of the mount table.
type Mounted struct {
	Path   string
	Device string
	Root   string // the mounted directory within its file system
	FSType string
	Source string
	Canary bool // a test mount that the agent removes at once
}

// Leftover is a path below the root that no record explains.
type Leftover struct {
	Path string
	Contents
	Err error
}

// NoteFile is a note with a problem.
type NoteFile struct {
	Path   string
	Record volume.Record // the record of the claim's volume; empty for an invalid note without a claim
	Alloc  string
	Bad    error // why the note is invalid
	// Claimed is set if the claim exists. Its note is then missing or invalid.
	Claimed bool
}

// Deregistered describes the leftovers and pending calls after a forced deregister.
type Deregistered struct {
	Record volume.Record
	Since  time.Time
	Left   []string // a sentence for each leftover; empty if a leftover can only appear later
	Calls  volume.PendingCallState
}

// Test is a plugin test that is running, or that was interrupted and left a volume.
type Test struct {
	Plugin  string
	Running bool
	Name    string // the name of its volume
	Begun   time.Time
	Paths   []string // the paths at which it may have a mount
	Dirs    []string // the directories that it made
}

// Plugin is the current state of a plugin.
type Plugin struct {
	ID       string
	View     plugin.View
	Since    time.Time
	Runtime  string // the runtime of its container; empty if it runs in none
	Units    []Unit // the units of a plugin that runs as units
	Pending  string
	Warnings []string
}

// Unit is a systemd unit.
type Unit struct {
	Name   string
	Before []string // the units that start after it
	Asked  bool     // whether systemd returned the properties of the unit
}

// System describes the parts of the host on which the agent depends.
type System struct {
	// Namespace and Init are the inode numbers of the mount namespaces of the agent and of process
	// 1; 0 if unknown.
	Namespace, Init uint64

	// Unit is the agent's own unit; empty if systemd does not run the agent. State is its
	// UnitFileState; empty if unknown.
	Unit, State string

	// Helper is the problem of the mount helper; empty if the helper works.
	Helper string
}

// Unmet is a setting that the agent could not apply.
type Unmet struct {
	Kind    string // VolumeFile or MetricsAddress
	Subject string // a file, or "agent"
	Why     string
	Do      string
}

// claims returns the number of claims.
func (p Picture) claims() (n int) {
	for _, v := range p.Volumes {
		n += len(v.Record.Claims)
	}
	return n
}

// records returns the records of the volumes and of the forced deregisters.
func (p Picture) records() (all []volume.Record) {
	for _, v := range p.Volumes {
		all = append(all, v.Record)
	}
	for _, d := range p.Deregistered {
		all = append(all, d.Record)
	}
	return all
}

// explained returns all paths at which the agent has, or may have, a mount. The paths come from the
// records, from forced deregisters, and from plugin tests.
func (p Picture) explained() map[string]bool {
	known := volume.Paths(p.records())
	known[p.Root] = true
	for _, t := range p.Tests {
		for _, path := range t.Paths {
			known[path] = true
		}
	}

	return known
}

// needed returns the paths in explained, and the directories that the agent makes for targets.
func (p Picture) needed() map[string]bool {
	known := p.explained()
	for _, r := range p.records() {
		for _, c := range r.Claims {
			for _, dir := range volume.TargetDirs(c.Target) {
				known[dir] = true
			}
		}
	}
	for _, t := range p.Tests {
		for _, dir := range t.Dirs {
			known[dir] = true
		}
	}

	return known
}

// spot is a path at which a mounted claim must have a mount, and the observation of that path.
type spot struct {
	what  string // "staged", "mounted for ALLOC", "bound for ALLOC"
	path  string
	made  *volume.MountIdentity // the recorded mount; nil if the agent must mount the volume again
	sight volume.Sight
}

// good reports whether the observed mount is the recorded one. If the agent must mount the volume
// again, every working mount is good.
func (m spot) good() bool {
	return m.sight.Seen == volume.SeenMount && (m.made == nil || m.sight.Is(m.made))
}

// rebacked reports whether the mount is the recorded node of a loop device, but the device now has
// another backing file.
func (m spot) rebacked() bool {
	if m.made == nil || m.made.Backing == "" || m.sight.Identity.Backing == m.made.Backing {
		return false
	}
	seen := m.sight
	seen.Identity.Backing = m.made.Backing
	return seen.Is(m.made)
}

// mounts returns the mounts that mounted claims use. The mount at the staging path is the first.
func (v Volume) mounts() (all []spot) {
	r := v.Record
	for _, c := range r.Ordered() {
		if !c.Wanted || c.State != volume.Mounted {
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

// within reports whether a path equals a directory or lies inside it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// settleLoops removes loop devices from the picture if they were detached during the examination,
// or if their volumes are now in use on this host, as the picture late shows.
func (p *Picture) settleLoops(now []Loop, late Picture) {
	p.Loops = slices.DeleteFunc(p.Loops, func(l Loop) bool { return !slices.Contains(now, l) || late.serves(l) })
}

// serves reports whether a loop device may belong to a volume that is on this host, or that a claim
// needs here. The path of the backing file then contains the volume's external id.
func (p Picture) serves(l Loop) bool {
	return slices.ContainsFunc(p.records(), func(r volume.Record) bool {
		id := r.Volume.ExternalID
		return id != "" && (r.Held() || r.Leftover) && slices.Contains(strings.Split(l.Backing, "/"), id)
	})
}

// Runtimes describes the volumes of the container runtimes docker and podman.
type Runtimes struct {
	Named  []volume.RuntimeVolume // the agent's records of the volumes that a runtime uses
	Doubts []Doubt
	Locals []Local
	Errs   map[string]error // why the agent cannot list a runtime's own volumes, by runtime
}

// Doubt describes references to a volume that docker or podman still has, although no container
// explains them.
type Doubt struct {
	Runtime string
	Name    string // the runtime's name for the volume
	Volume  string
	Alloc   string
	Since   time.Time
	Leaked  int    // references that no container explains
	Of      int    // all references of the claim
	Kept    string // why the claim stays; empty if the agent is about to detach it
}

// Local is a volume that a runtime made with its own driver "local".
type Local struct {
	Runtime string
	Name    string
	Path    string // the directory of its files; may be empty
}
