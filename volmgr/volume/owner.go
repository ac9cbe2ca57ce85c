package volume

import (
	"cmp"
	"fmt"
)

// Owner is who keeps a claim alive: when it ends, the claim is past. Two owners
// are the same if they are equal; a process that got the pid of an earlier one,
// and a unit that was started again, are others.
type Owner struct {
	Kind string `json:"kind"` // one of the constants below
	// PID is of a process as the agent sees it, StartTime when it began, in clock
	// ticks since the boot (proc_pid_stat(5), field 22).
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"`
	// Unit is a unit of the system's service manager, Invocation its InvocationID,
	// 32 hex digits (systemd.exec(5)).
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`
	// Runtime is the container runtime, "docker" or "podman", whose containers refer to
	// the volume.
	Runtime string `json:"runtime,omitempty"`
	// Volume is the name that the runtime knows the volume by.
	Volume string `json:"volume,omitempty"`
	// Boot is the boot id that a process or an invocation is of: none outlives it.
	Boot string `json:"boot,omitempty"`
	// Dir and Mount are where and what a claim's mount is. They are a keeper's alone
	// (Claim.Keeper), and not stored with the owner.
	Dir   string        `json:"-"`
	Mount MountIdentity `json:"-"`
}

// Descriptor is an open file of another process.
type Descriptor struct{ PID, FD int }

// Kinds of owners.
const (
	OwnerNone = "none" // the claim lives until it is detached
	OwnerPID  = "pid"
	OwnerUnit = "unit"
	// OwnerMount is the mount at Claim.At, and until that is made the process that asked
	// for it.
	OwnerMount = "mount"
	// OwnerRuntime is a container runtime. It never ends by itself: who knows that no
	// container refers to the volume any more releases the claim.
	OwnerRuntime = "runtime"
)

// String names the owner, without a look at whether it is still there.
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

// Mortal reports whether there is somebody who would miss the claim: only an owner that is
// gone, or force, lets it be released.
func (o Owner) Mortal() bool {
	return o.Kind == OwnerPID || o.Kind == OwnerUnit || o.Kind == OwnerMount || o.Kind == OwnerRuntime
}

// Life is what is known of an owner.
type Life string

// What can be known of an owner. Nobody is taken for gone without an answer.
const (
	LifeUnknown Life = "unknown"
	LifeRunning Life = "running"
	LifeGone    Life = "gone"
)

// OwnerView is an owner as it is at one moment. It is never stored.
type OwnerView struct {
	Life Life
	// PID is the process, or the main process of a unit; 0 if there is none.
	PID     int
	Command string // of that process; empty if it cannot be told
	// References are how many containers of a runtime refer to the volume.
	References int
}

// Describe words an owner for a refusal.
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

// Containers counts containers in words.
func Containers(n int) string {
	if n == 1 {
		return "1 container"
	}
	return fmt.Sprintf("%d containers", n)
}

// Owners tells who is alive. It answers from memory, and about a mount from the
// kernel's, which waits for no storage.
type Owners interface {
	// Gone reports whether a mortal owner, a claim's keeper, is known to have ended.
	Gone(o Owner) bool
	// View looks at a mortal owner for people.
	View(o Owner) OwnerView
}

// Past is the record as it is to be read: a claim whose owner is known to be gone
// is on its way out, whether or not that was asked for and stored yet. With nil
// for owners nobody is known to be gone.
func Past(r Record, owners Owners) Record {
	if owners == nil {
		return r
	}
	for _, c := range r.Claims {
		if c.Wanted && c.Owner.Mortal() && owners.Gone(c.Keeper()) {
			r = r.with(c.unwanted())
		}
	}
	return r
}

// unwanted is the claim once its release began.
func (c Claim) unwanted() Claim {
	c.Wanted, c.State = false, Unpublishing
	return c
}

// freedBy is what frees a volume of a wanted claim.
func (c Claim) freedBy(id string) string {
	force := Command("volctl volume detach %s %s --force", id, c.Alloc)
	switch o := c.Keeper(); {
	case o.Process():
		return fmt.Sprintf("end pid %d, or unmount under it: %s", o.PID, force)
	case o.ByMount():
		return Command("volctl umount %s", o.Dir) // which names the services that use it
	case o.Kind == OwnerMount: // there is nothing to unmount just now
		return force
	case o.Kind == OwnerUnit:
		stop := Command("systemctl stop %s", c.Owner.Unit)
		return fmt.Sprintf("%s, or unmount under it: %s", cmp.Or(stop, "stop its unit"), force)
	case o.Kind == OwnerRuntime:
		return fmt.Sprintf("stop its containers (%s), or unmount under them: %s",
			Command("%s ps --filter volume=%s", c.Owner.Runtime, c.Owner.Volume), force)
	default:
		return Command("volctl volume detach %s %s", id, c.Alloc)
	}
}

// MayDetach decides whether a claim may be released because somebody asks for
// it: not under an owner that is alive, or of which nothing is known. Whoever
// insists passes that by. The view is of the claim's keeper.
func MayDetach(id string, c Claim, v OwnerView, force bool) error {
	if force || !c.Wanted || !c.Owner.Mortal() || v.Life == LifeGone {
		return nil
	}
	o, is := c.Keeper(), "running"
	switch {
	case o.ByMount():
		is = "there"
	case o.Kind == OwnerMount && !o.Process():
		is = "being made anew"
	}
	state := "which is " + is
	if v.Life != LifeRunning {
		state = "of which it is not known whether it is " + is
	}
	return Errorf(ErrRefused, "the claim of %q on volume %q is owned by %s, %s", c.Alloc, id, o.Describe(v), state).
		WithHint("%s", c.freedBy(id))
}
