package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/suggest"
)

// Severity is the importance of a finding.
type Severity string

// These are the severities, from the most to the least severe.
const (
	Problem Severity = fstab.Problem // something does not work, or data is at risk
	Warning Severity = fstab.Warning // the object works now, but may fail later
	Note    Severity = "note"        // harmless, but the operator may want to clean it up
)

// These are the kinds of findings. The id of a finding starts with its kind, and docs/doctor.md has
// a section for each kind.
const (
	DBCommit   = "db-commit"
	DBCheck    = "db-check"
	DBLost     = "db-lost"
	DBDamaged  = "db-damaged-file"
	DBOld      = "db-backup-file"
	DBLog      = "db-log"
	DBForeign  = "db-foreign-file"
	DiskFull   = "disk-full"
	NotLooked  = "not-looked"
	HostHalted = "agent-halted"

	VolumeFile     = "volume-file"
	ClassFile      = "class-file"
	MetricsAddress = "metrics-address"

	MountUnexplained = "mount-unexplained"
	MountInside      = "mount-inside"
	MountMissing     = "mount-missing"
	MountDead        = "mount-dead"
	MountHung        = "mount-hung"
	MountOther       = "mount-other"
	MountUnreadable  = "mount-unreadable"
	StagedUnclaimed  = "staged-unclaimed"
	LeftoverEmpty    = "leftover-empty"
	LeftoverData     = "leftover-data"
	NoteStray        = "note-stray"
	NoteMissing      = "note-missing"
	NoteBad          = "note-bad"

	VolumeStuck        = "volume-stuck"
	VolumeDegraded     = "volume-degraded"
	VolumeWaits        = "volume-waits"
	VolumePendingCalls = "volume-pending-calls"
	VolumeUnseen       = "volume-unseen"
	VolumeLeftover     = "volume-leftover"
	ExpansionRefused   = "expansion-refused"
	OwnerUnknown       = "owner-unknown"
	TestLeft           = "test-left"

	PluginUnknown    = "plugin-unknown"
	PluginDown       = "plugin-down"
	PluginStopped    = "plugin-stopped"
	PluginPending    = "plugin-pending"
	PluginRestarts   = "plugin-restarts"
	PluginWarning    = "plugin-warning"
	PluginCapability = "plugin-capability"
	PluginDeadlock   = "plugin-boot-deadlock"
	PluginFence      = "plugin-fence"
	PluginOrder      = "plugin-unit-order"

	DeviceGone      = "device-gone"
	DeviceBacking   = "device-backing-deleted"
	DeviceElsewhere = "device-elsewhere"
	DeviceOrphan    = "device-orphan"

	HostNamespace = "host-namespace"
	HostUnit      = "host-unit"
	HostHelper    = "host-helper"

	GuardStale = "guard-stale"

	ClusterUnreachable = "cluster-unreachable"
	ClusterWatchLate   = "cluster-watch-late"
	ClusterCallOpen    = "cluster-call-open"
	ClusterKeys        = "cluster-keys"
	HoldUnused         = "hold-unused"
	HoldStale          = "hold-token-stale"
	MountUnheld        = "mount-without-hold"
	VolumeConflict     = "volume-conflict"

	RuntimeReference = "runtime-reference"
	RuntimeLocal     = "runtime-local-volume"
)

// Kinds lists all kinds of findings.
var Kinds = slices.Concat([]string{
	DBCommit, DBCheck, DBLost, DBDamaged, DBOld, DBLog, DBForeign, DiskFull, NotLooked, HostHalted, VolumeFile, ClassFile, MetricsAddress,
	MountUnexplained, MountInside, MountMissing, MountDead, MountHung, MountOther, MountUnreadable, StagedUnclaimed, LeftoverEmpty, LeftoverData,
	NoteStray, NoteMissing, NoteBad,
	VolumeStuck, VolumeDegraded, VolumeWaits, VolumePendingCalls, VolumeUnseen, VolumeLeftover, ExpansionRefused, OwnerUnknown, TestLeft,
	PluginUnknown, PluginDown, PluginStopped, PluginPending, PluginRestarts, PluginWarning, PluginCapability, PluginDeadlock, PluginFence, PluginOrder,
	DeviceGone, DeviceBacking, DeviceElsewhere, DeviceOrphan, HostNamespace, HostUnit, HostHelper, GuardStale, RuntimeReference, RuntimeLocal,
	ClusterUnreachable, ClusterWatchLate, ClusterCallOpen, ClusterKeys, HoldUnused, HoldStale, MountUnheld, VolumeConflict,
}, fstab.Kinds)

// Finding describes one problem on the host.
type Finding struct {
	// ID consists of the kind, a colon and the subject. It does not change as long as the problem
	// exists.
	ID       string
	Kind     string
	Severity Severity
	Subject  string // a volume, a plugin, a path, or "agent"
	What     string // the problem, in one sentence
	Then     string // the consequence of the problem, and whether data is safe
	Do       string // a command that solves or shows the problem; may be empty

	// Fix describes how the doctor can solve the problem. It is empty if the doctor cannot solve
	// the problem.
	Fix string

	repair fix
}

// findings collects the findings of the rules.
type findings struct{ all []Finding }

// add adds a finding and returns it. The argument about becomes the end of the finding's id, and so
// distinguishes findings of the same kind.
func (f *findings) add(kind string, s Severity, subject, about string) *Finding {
	f.all = append(f.all, Finding{ID: kind + ":" + about, Kind: kind, Severity: s, Subject: subject})
	return &f.all[len(f.all)-1]
}

func (f *Finding) what(format string, args ...any) *Finding {
	f.What = fmt.Sprintf(format, args...)
	return f
}

func (f *Finding) then(format string, args ...any) *Finding {
	f.Then = fmt.Sprintf(format, args...)
	return f
}

// do sets the command of a finding. It quotes the arguments for a shell.
func (f *Finding) do(format string, args ...any) *Finding {
	f.Do = suggest.Command(format, args...)
	return f
}

// commands sets several commands that run one after another.
func (f *Finding) commands(all ...string) *Finding {
	f.Do = strings.Join(all, "; ")
	return f
}

func (f *Finding) fix(words string, m fix) *Finding {
	f.Fix, f.repair = words, m
	return f
}

// line returns the first line of an error, and the number of further lines if there are any.
func line(err error) string {
	text := strings.TrimSpace(err.Error())
	first, rest, more := strings.Cut(text, "\n")
	if !more {
		return first
	}
	return fmt.Sprintf("%s, and %d more", first, 1+strings.Count(rest, "\n"))
}

// fix describes how the doctor can solve a problem. No fix unmounts anything, or removes data that
// a user or a program wrote.
type fix struct {
	kind   fixKind
	path   string
	volume string // the key of the volume's record
	note   NoteFile
}

type fixKind string

const (
	nothing fixKind = ""
	wake    fixKind = "wake"    // retry the volume's next step now
	remove  fixKind = "remove"  // remove an empty leftover
	renote  fixKind = "renote"  // make a claim's note match the claim's record
	compare fixKind = "compare" // compare the holds of this host with the cluster again
	unguard fixKind = "unguard" // make a directory writable that claims no longer use
)
