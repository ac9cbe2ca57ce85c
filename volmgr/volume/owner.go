package volume

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
)

// Owner is the process, unit, mount or runtime that keeps a claim alive. The claim ends when its
// owner ends. Two owners are the same if they are equal. A later process with the same pid is a
// different owner, and so is a unit after a restart.
type Owner struct {
	Kind string `json:"kind"` // one of the constants below

	// PID is the process id in the pid namespace of the agent. StartTime is the start of that
	// process, in clock ticks since the boot (proc_pid_stat(5), field 22).
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"`

	// Unit is a unit of systemd. Invocation is its InvocationID, 32 hex digits (systemd.exec(5)).
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`

	// Runtime is the container runtime whose containers use the volume: "docker" or "podman".
	Runtime string `json:"runtime,omitempty"`

	// Volume is the name that the runtime uses for the volume.
	Volume string `json:"volume,omitempty"`

	// Boot is the boot id. It is set for a process or a unit, because neither outlives its boot.
	Boot string `json:"boot,omitempty"`

	// Dir and Mount are the path and the identity of the claim's mount. Only the keeper of a claim
	// has them (see Claim.Keeper). The stored owner does not contain them.
	Dir   string        `json:"-"`
	Mount MountIdentity `json:"-"`
}

// Descriptor is an open file descriptor of another process.
type Descriptor struct{ PID, FD int }

// These are the kinds of owners.
const (
	OwnerNone = "none" // the claim lives until it is detached
	OwnerPID  = "pid"
	OwnerUnit = "unit"
	// OwnerMount means that the mount at Claim.At is the owner. Until that mount exists, the owner
	// is the process that asked for the mount.
	OwnerMount = "mount"
	// OwnerRuntime means that a container runtime is the owner. This owner never ends. The agent
	// detaches the claim when no container uses the volume any more.
	OwnerRuntime = "runtime"
)

// String returns the name of the owner. It does not check whether the owner still exists.
func (o Owner) String() string {
	switch o.Kind {
	case OwnerPID:
		return fmt.Sprintf("pid %d", o.PID)
	case OwnerUnit:
		return o.Unit
	case OwnerMount:
		if o.PID != 0 {
			return fmt.Sprintf("pid %d, which mounts %s", o.PID, o.Dir)
		}

		return "the mount at " + o.Dir
	case OwnerRuntime:
		return o.Runtime
	default:
		return "no owner"
	}
}

// Mortal reports whether the claim has an owner that can end. Without force, such a claim can be
// detached only after its owner has ended.
func (o Owner) Mortal() bool {
	return o.Kind == OwnerPID || o.Kind == OwnerUnit || o.Kind == OwnerMount || o.Kind == OwnerRuntime
}

// Life says whether an owner is alive, as far as the agent knows.
type Life string

// These are the values of Life. An owner counts as gone only if its end is certain.
const (
	LifeUnknown Life = "unknown"
	LifeRunning Life = "running"
	LifeGone    Life = "gone"
)

// OwnerView is the state of an owner at one moment. The agent never stores it.
type OwnerView struct {
	Life Life
	// PID is the pid of the owner if the owner is a process, or of a unit's main process. It is 0
	// if there is no process.
	PID     int
	Command string // the command of the process; empty if unknown
	// References is the number of containers of the runtime that use the volume.
	References int
}

// Describe describes the owner and its state for the message of a refusal.
func (o Owner) Describe(v OwnerView) string {
	s := o.String()
	switch {
	case o.Process() && v.Command != "" && o.Kind == OwnerMount:
		s = fmt.Sprintf("pid %d (%s), which mounts %s", o.PID, v.Command, o.Dir)
	case o.Kind == OwnerPID && v.Command != "":
		s += " (" + v.Command + ")"
	case o.Kind == OwnerUnit && v.PID != 0 && v.Command != "":
		s += fmt.Sprintf(" (pid %d, %s)", v.PID, v.Command)
	case o.Kind == OwnerUnit && v.PID != 0:
		s += fmt.Sprintf(" (pid %d)", v.PID)
	case o.Kind == OwnerRuntime:
		s += ", " + Containers(v.References)
	}

	return s
}

// Containers returns a number of containers in words.
func Containers(n int) string {
	if n == 1 {
		return "1 container"
	}
	return fmt.Sprintf("%d containers", n)
}

// Owners reports which owners are alive. It answers from memory. For a mount, it asks the kernel,
// in a way that does not wait for storage.
type Owners interface {
	// Gone reports whether an owner has certainly ended. The caller passes the keeper of a claim
	// (see Claim.Keeper).
	Gone(o Owner) bool
	// View returns the current state of an owner, for messages to people.
	View(o Owner) OwnerView
}

// Process reports whether the claim ends with a process.
func (o Owner) Process() bool { return o.Kind == OwnerPID || o.Kind == OwnerMount && o.PID != 0 }

// ByMount reports whether the claim ends with one particular mount.
func (o Owner) ByMount() bool { return o.Kind == OwnerMount && o.Mount != (MountIdentity{}) }

// Terms holds the properties of a claim that its caller chooses. The request states them, and the
// claim keeps them. A repeated request for the same claim must state the same terms. Terms is
// comparable.
//
// The alloc is not a term, because it is the key of the claim.
type Terms struct {
	ReadOnly bool `json:"read_only,omitempty"`

	// Mode may be incomplete in a request. The agent fills each empty part from the mode in force,
	// or else from the first listed capability that fits. The mode of a claim is complete.
	Mode call.Capability `json:"mode"`

	Owner Owner `json:"owner"`

	// At is the own directory, on which the agent bind-mounts the target. It is empty if the claim
	// has none.
	At string `json:"at,omitempty"`

	// AtFlags holds the mount options of the bind mount at At, in the form that AtFlags returns.
	AtFlags string `json:"at_flags,omitempty"`

	// AtWritable is set if the agent must not guard At while the volume is not mounted there.
	AtWritable bool `json:"at_writable,omitempty"`

	// Own is the requested ownership of the volume's root. A default owner is not a term.
	Own Ownership `json:"own,omitzero"`

	// Note is the operator's text about the claim. A request may omit it.
	Note string `json:"note,omitempty"`
}

// differences returns the names of the terms in which a request differs from the claim. An omitted
// mode or note does not count as different. If the claim has no own directory, its write protection
// does not count either.
func (t Terms) differences(asked Terms) []string {
	var names []string
	note := func(name string, differs bool) {
		if differs {
			names = append(names, name)
		}
	}

	note("read-only", asked.ReadOnly != t.ReadOnly)
	note("access mode", asked.Mode.Access != "" && asked.Mode.Access != t.Mode.Access)
	note("attachment mode", asked.Mode.Attachment != "" && asked.Mode.Attachment != t.Mode.Attachment)
	note("directory", asked.At != t.At)
	note("write protection of the directory", asked.At != "" && asked.AtWritable != t.AtWritable)
	note("owner", asked.Owner != t.Owner)
	note("list of mount options at "+t.At, asked.AtFlags != t.AtFlags)
	note("uid, gid or mode", asked.Own.asked() != t.Own.asked())
	note("note", asked.Note != "" && asked.Note != t.Note)
	return names
}
