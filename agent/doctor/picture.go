package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Picture is the collected data of one examination. The rules use no other data.
type Picture struct {
	Now  time.Time
	Root string // the directory that contains all volume mounts
	Halt string

	// OtherDataDir is the data dir of another agent, whose mounts or plugins are the reason for
	// Halt. It is empty if there is no such agent.
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
	Faults       []fstab.Fault // problems of the entries, as far as package fstab finds them
	Guards       []Guard
	Runtimes     Runtimes
	Cluster      Cluster
}

// Guard is a directory that is protected against writes while no volume is mounted on it.
type Guard struct {
	Dir     string
	Volumes []string // the volumes whose records contain the directory
}

// Database describes the state database and the files beside it.
type Database struct {
	Dir   string // the directory that contains the database
	Fault error  // the reason why the last commit failed
	Check error  // the problem that a check of the file found
	NoLog error  // the reason why the agent does not use state.log
	Loss  Loss
	Kept  []string // damaged databases that the agent has kept

	// Foreign lists files that another program put in place of the open database files. If the
	// agent refuses changes because of one of these files, Refused is that file.
	Foreign []string
	Refused string
	Old     []string // copies of the database that were made before a migration
	Disk    Disk
}

// Loss describes the loss of an earlier database.
type Loss struct {
	At              time.Time // zero if no database was lost
	Why             string
	Volumes, Claims int // how many volumes and claims were adopted

	// Copy is the time of the automatic copy from which the agent restored the remaining records.
	// It is zero if there was no such copy.
	Copy time.Time
}

// Disk describes the space on the disk of the data dir.
type Disk struct {
	Err                error
	Total, Free        uint64 // in bytes; Total is 0 if unknown
	Inodes, FreeInodes uint64 // 0 if the file system does not count inodes
}

// Volume contains the record of a volume and the observed state of its mounts, owners and devices.
type Volume struct {
	Record   volume.Record
	Observed volume.Observed
	Attempt  *volume.Attempt
	Owners   map[string]volume.OwnerView // the owners of wanted claims, by alloc
	Blocks   map[string]Block            // block devices by number; empty after a reboot
	Beneath  map[string]Contents         // the contents of the paths at which a mount is missing

	// Moving is set if the record changed during the check, or if a running step may change the
	// record. The observed state may then not match the record.
	Moving bool
}

// atWork reports whether a step is running that has not failed before. The record shows the effect
// of the step only after the step has ended.
func (v Volume) atWork() bool { return v.Attempt != nil && v.Attempt.Running && v.Attempt.Err == nil }

// Block describes a block device as the kernel shows it.
type Block struct {
	Name    string // the name below /dev; may be empty
	Gone    bool
	Backing string // the path of a loop device's backing file
	Deleted bool   // whether the backing file was deleted
}

// Loop is a loop device that has a backing file.
type Loop struct {
	Device string // "major:minor"
	Block
}

// Contents describes the file or directory at a path, without the contents of a mount.
type Contents struct {
	Mounted bool
	Kind    string // "directory", "file", "device" or "other"; empty if the path does not exist
	Empty   bool   // whether the file or directory is empty
	Holds   string // a description of the contents
}

// Mounted is one line of the mount table.
type Mounted struct {
	Path   string
	Device string
	Root   string // the mounted directory, relative to the root of its file system
	FSType string
	Source string
	Canary bool // whether this is a short-lived test mount of the agent
}

// Leftover is a path in the directory of all mounts that belongs to no record.
type Leftover struct {
	Path string
	Contents
	Err error
}

// NoteFile is a note with a problem, or a claim without a note.
type NoteFile struct {
	Path   string
	Record volume.Record // the record of the volume; empty for an invalid note without a claim
	Alloc  string
	Bad    error // why the note is invalid
	// Claimed is set if the claim exists. The claim's note is then missing or invalid.
	Claimed bool
}

// Deregistered describes a volume after a forced deregister, with its leftovers and pending calls.
type Deregistered struct {
	Record volume.Record
	Since  time.Time
	Left   []string // a sentence for each leftover; may be empty
	Calls  volume.PendingCallState
}

// Test is a plugin test that is running, or that was interrupted and left a volume behind.
type Test struct {
	Plugin  string
	Running bool
	Name    string // the name of the test's volume
	Begun   time.Time
	Paths   []string // the paths at which it may have a mount
	Dirs    []string // the directories that it made
}

// Plugin describes the current state of a plugin.
type Plugin struct {
	ID       string
	View     plugin.View
	Since    time.Time
	Runtime  string // the container runtime of the plugin; empty if it runs in no container
	Units    []Unit // the systemd units of the plugin; empty if it does not run as units
	Pending  string
	Warnings []string
}

// Unit is a systemd unit.
type Unit struct {
	Name   string
	Before []string // the units that systemd starts after this unit
	Asked  bool     // whether systemd returned the properties of the unit
}

// System describes systemd and the mount helper, on which the agent depends.
type System struct {
	// Namespace and Init are the inode numbers of the mount namespaces of the agent and of process
	// 1. They are 0 if unknown.
	Namespace, Init uint64

	// Unit is the systemd unit of the agent; empty if systemd does not run the agent. State is the
	// unit's UnitFileState; empty if unknown.
	Unit, State string

	// Helper describes a problem of the mount helper. It is empty if the mount helper works.
	Helper string
}

// Unmet is a setting that the agent could not apply.
type Unmet struct {
	Kind    string // VolumeFile, ClassFile or MetricsAddress
	Subject string // the path of a file, or "agent"
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

// explained returns all paths at which the agent has or may have mounts. The paths belong to
// records, forced deregisters and plugin tests.
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

// spot is a path at which a mounted claim needs a mount, with the observed state of the path.
type spot struct {
	what  string // "staged", "mounted for ALLOC" or "bound for ALLOC"
	path  string
	made  *volume.MountIdentity // the recorded mount; nil if the agent must mount the volume again
	sight volume.Sight
}

// good reports whether the observed mount is the recorded mount. If there is no recorded mount,
// because the agent must mount the volume again, every working mount is good.
func (m spot) good() bool {
	return m.sight.Seen == volume.SeenMount && (m.made == nil || m.sight.Is(m.made))
}

// rebacked reports whether the recorded loop device is still mounted but now has a different
// backing file.
func (m spot) rebacked() bool {
	if m.made == nil || m.made.Backing == "" || m.sight.Identity.Backing == m.made.Backing {
		return false
	}
	seen := m.sight
	seen.Identity.Backing = m.made.Backing
	return seen.Is(m.made)
}

// mounts returns the mounts that mounted claims need. The mount at the staging path comes first.
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

// within reports whether a path is dir itself or lies inside dir.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// settleLoops removes loop devices from the picture if they were detached during the examination,
// or if their volumes are now in use on this host, as the picture late shows.
func (p *Picture) settleLoops(now []Loop, late Picture) {
	p.Loops = slices.DeleteFunc(p.Loops, func(l Loop) bool { return !slices.Contains(now, l) || late.serves(l) })
}

// serves reports whether a loop device belongs to a volume that has claims or is on this host. A
// device belongs to a volume if the volume's external id is a component of the path of the backing
// file.
func (p Picture) serves(l Loop) bool {
	return slices.ContainsFunc(p.records(), func(r volume.Record) bool {
		id := r.Volume.ExternalID
		return id != "" && (r.Held() || r.Leftover) && slices.Contains(strings.Split(l.Backing, "/"), id)
	})
}

// Runtimes describes volumes of docker and podman.
type Runtimes struct {
	Named  []volume.RuntimeVolume // the agent's records of volumes that a runtime uses
	Doubts []Doubt
	Locals []Local
	Errs   map[string]error // the errors of listing volumes, by runtime
}

// Doubt describes references to a volume for which docker or podman has no container.
type Doubt struct {
	Runtime string
	Name    string // the name of the volume in the runtime
	Volume  string
	Alloc   string
	Since   time.Time
	Leaked  int    // the number of references without a container
	Of      int    // the total number of references of the claim
	Kept    string // why the claim stays; empty if the agent will detach it
}

// Local is a volume that a runtime created with its built-in driver "local".
type Local struct {
	Runtime string
	Name    string
	Path    string // the directory of the volume's files; may be empty
}
