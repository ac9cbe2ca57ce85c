package volume

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
)

// Owner is the process, unit, mount or container runtime for which a claim exists. The claim ends
// when its owner ends. Two owners are the same if they are equal. A later process with the same pid
// is a different owner, and so is a unit after a restart.
type Owner struct {
	Kind string `json:"kind"` // one of the constants that begin with Owner

	// PID is the process id in the pid namespace of the agent. StartTime is the start time of this
	// process, in clock ticks since the boot (proc_pid_stat(5), field 22).
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"`

	// Unit is the name of a systemd unit. Invocation is its InvocationID, which has 32 hex digits
	// (systemd.exec(5)).
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`

	// Runtime is the container runtime whose containers use the volume: "docker" or "podman".
	Runtime string `json:"runtime,omitempty"`

	// Volume is the name that the runtime uses for the volume.
	Volume string `json:"volume,omitempty"`

	// Boot is the boot id. It is set only for a process or a unit, because these exist only within
	// one boot.
	Boot string `json:"boot,omitempty"`

	// Dir and Mount are the path and the identity of the claim's mount. They are set only in the
	// result of Claim.Keeper, and not in the stored owner.
	Dir   string        `json:"-"`
	Mount MountIdentity `json:"-"`
}

// Descriptor identifies an open file descriptor of another process.
type Descriptor struct{ PID, FD int }

// These are the kinds of owners.
const (
	OwnerNone = "none" // the claim exists until it is detached
	OwnerPID  = "pid"
	OwnerUnit = "unit"
	// OwnerMount means that the mount at Claim.At is the owner. Until this mount exists, the
	// process that requested the mount is the owner.
	OwnerMount = "mount"
	// OwnerRuntime means that a container runtime is the owner. Such an owner never ends. The agent
	// detaches the claim when no container uses the volume any longer.
	OwnerRuntime = "runtime"
)

// String returns a name of the owner. It does not check whether the owner still exists.
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

// Mortal reports whether the owner is of a kind that can end. A claim with such an owner can be
// detached only after the owner has ended, unless the detach is forced.
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
	// PID is the pid of the process that is the owner, or of the main process of the unit. It is 0
	// if there is no process.
	PID     int
	Command string // command of the process; empty if unknown
	// References is the number of the runtime's containers that use the volume.
	References int
}

// Describe describes the owner and its state, for the message of a refusal.
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

// Containers returns a text such as "2 containers".
func Containers(n int) string {
	if n == 1 {
		return "1 container"
	}
	return fmt.Sprintf("%d containers", n)
}

// Owners reports which owners are alive. Its methods answer from memory. Only for a mount do they
// ask the kernel, in a way that does not wait for storage.
type Owners interface {
	// Gone reports whether an owner has certainly ended. The caller must pass the result of
	// Claim.Keeper.
	Gone(o Owner) bool
	// View returns the current state of an owner, for messages to people.
	View(o Owner) OwnerView
}

// Process reports whether the claim ends when a process ends.
func (o Owner) Process() bool { return o.Kind == OwnerPID || o.Kind == OwnerMount && o.PID != 0 }

// ByMount reports whether the claim ends when one particular mount ends.
func (o Owner) ByMount() bool { return o.Kind == OwnerMount && o.Mount != (MountIdentity{}) }

// Terms holds the properties of a claim that its caller chooses. A request contains them, and the
// claim keeps them. A repeated request for the same claim must have the same terms. Terms must be
// comparable with ==.
//
// The alloc is not part of the terms, because it is the key of the claim.
type Terms struct {
	ReadOnly bool `json:"read_only,omitempty"`

	// Mode may be incomplete in a request. The agent completes it with the mode of the present
	// claims. If there are no claims, the agent uses the first capability in the volume's list that
	// fits. The mode of a claim is always complete.
	Mode call.Capability `json:"mode"`

	Owner Owner `json:"owner"`

	// At is the own directory, on which the agent bind-mounts the target. It is empty if the claim
	// has no own directory.
	At string `json:"at,omitempty"`

	// AtFlags holds the options of the bind mount at At, in the form that the function AtFlags
	// returns.
	AtFlags string `json:"at_flags,omitempty"`

	// AtWritable is set if the agent must not set a guard on At.
	AtWritable bool `json:"at_writable,omitempty"`

	// Own is the requested ownership of the volume's root. The default owner does not count as a
	// term.
	Own Ownership `json:"own,omitzero"`

	// Note is the operator's text about the claim. A repeated request may omit it.
	Note string `json:"note,omitempty"`
}

// differences returns the names of the terms in which a request differs from the claim. If the
// request omits the mode or the note, this does not count as a difference. AtWritable counts only
// if the claim has an own directory.
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
