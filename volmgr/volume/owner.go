package volume

import "fmt"

// Owner keeps a claim alive: the claim ends when its owner ends. Two owners are the same if they
// are equal. A process with the pid of an earlier one is a different owner, and so is a unit that
// was started again.
type Owner struct {
	Kind string `json:"kind"` // one of the constants below

	// PID is a process id as the agent sees it. StartTime is the start of that process, in clock
	// ticks since the boot (proc_pid_stat(5), field 22).
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"`

	// Unit is a unit of the system's service manager. Invocation is its InvocationID, 32 hex digits
	// (systemd.exec(5)).
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`

	// Runtime is the container runtime, "docker" or "podman", whose containers refer to
	// the volume.
	Runtime string `json:"runtime,omitempty"`

	// Volume is the name of the volume in the runtime.
	Volume string `json:"volume,omitempty"`

	// Boot is the boot id of a process or an invocation. Neither outlives its boot.
	Boot string `json:"boot,omitempty"`

	// Dir and Mount are the path and the identity of the claim's mount. Only a keeper has them
	// (Claim.Keeper). They are not stored with the owner.
	Dir   string        `json:"-"`
	Mount MountIdentity `json:"-"`
}

// Descriptor is an open file of another process.
type Descriptor struct{ PID, FD int }

// The kinds of owners.
const (
	OwnerNone = "none" // the claim lives until it is detached
	OwnerPID  = "pid"
	OwnerUnit = "unit"
	// OwnerMount is the mount at Claim.At. Until that mount exists, the owner is the process that
	// asked for it.
	OwnerMount = "mount"
	// OwnerRuntime is a container runtime. It never ends by itself. The claim is detached when no
	// container refers to the volume any more.
	OwnerRuntime = "runtime"
)

// String names the owner. It does not check whether the owner still exists.
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

// Mortal reports whether the claim has an owner that needs it. Such a claim can be detached only
// after its owner has ended, or by force.
func (o Owner) Mortal() bool {
	return o.Kind == OwnerPID || o.Kind == OwnerUnit || o.Kind == OwnerMount || o.Kind == OwnerRuntime
}

// Life is the known state of an owner.
type Life string

// The values of Life. An owner counts as gone only if that is certain.
const (
	LifeUnknown Life = "unknown"
	LifeRunning Life = "running"
	LifeGone    Life = "gone"
)

// OwnerView is the state of an owner at one moment. It is never stored.
type OwnerView struct {
	Life Life
	// PID is the process, or the main process of a unit; 0 if there is none.
	PID     int
	Command string // of that process; empty if unknown
	// References is the number of a runtime's containers that refer to the volume.
	References int
}

// Describe describes the owner for a refusal.
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

// Owners tells which owners are alive. It answers from memory. For a mount, it reads state from the
// kernel, which does not wait for storage.
type Owners interface {
	// Gone reports whether a mortal owner, the keeper of a claim, is known to have ended.
	Gone(o Owner) bool
	// View returns the current state of a mortal owner, for people.
	View(o Owner) OwnerView
}

// Process reports whether the owner is a process. The claim ends with that process.
func (o Owner) Process() bool { return o.Kind == OwnerPID || o.Kind == OwnerMount && o.PID != 0 }

// ByMount reports whether the owner is one mount. The claim ends with that mount.
func (o Owner) ByMount() bool { return o.Kind == OwnerMount && o.Mount != (MountIdentity{}) }
