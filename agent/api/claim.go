package api

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxNote is the greatest number of characters in a claim's note.
const MaxNote = 200

// Claim states, in the order a claim goes through them.
const (
	ClaimPending            = "pending"
	ClaimTaken              = "taken"
	ClaimUnpublishing       = "unpublishing"
	ClaimNodeDetached       = "node-detached"
	ClaimControllerDetached = "controller-detached"
	ClaimReadyToFree        = "ready-to-free"
)

// ClaimRequest asks for a volume on behalf of an alloc. What is left empty
// takes the mode in force, else the first listed capability that fits.
type ClaimRequest struct {
	ReadOnly       bool     `json:"read_only,omitempty"`
	AccessMode     string   `json:"access_mode,omitempty"`
	AttachmentMode string   `json:"attachment_mode,omitempty"`
	MountFlags     []string `json:"mount_flags,omitempty"`
	// At is an absolute path where the volume is bound as well.
	At string `json:"at,omitempty"`
	// AtFD is a descriptor of the caller's that is open on At (O_PATH). The bind is then
	// made on that very directory, without another walk to it, which a directory that
	// is mounted on demand (autofs) would make wait for the caller itself. Only root may
	// lend one, of its own mount namespace, to a request that waits. -1 in effect if it
	// is left out.
	AtFD *int `json:"at_fd,omitempty"`
	// AtFlags are options of the mount at At alone, in the words of mount(8): nosuid,
	// nodev, noexec, noatime, nodiratime, relatime, strictatime, nosymfollow.
	AtFlags []string `json:"at_flags,omitempty"`
	// AtWritable leaves At writable while nothing is mounted there. Otherwise an empty
	// directory is made immutable (ioctl_iflags(2)) before the first mount, so that
	// nobody writes to the disk beneath; it stays so until the volume is deregistered.
	AtWritable bool `json:"at_writable,omitempty"`
	Ownership
	// Owner is who keeps the claim alive. Its Kind decides which of PID, Unit and
	// Invocation count; left empty, the claim lives until it is detached.
	Owner Owner `json:"owner,omitzero"`
	// Note is a text about the claim for people, as CheckNote accepts it. A repeated request
	// may leave it out.
	Note string `json:"note,omitempty"`
}

// CheckNote returns an error with CodeInvalid unless a claim's note has at most MaxNote characters and
// all of them are printable.
func CheckNote(note string) error {
	refused := func(format string, args ...any) error {
		return &Error{
			Code: CodeInvalid, Message: "note " + fmt.Sprintf(format, args...),
			Hint: fmt.Sprintf("a note has at most %d printable characters", MaxNote),
		}
	}

	if !utf8.ValidString(note) {
		return refused("is not UTF-8")
	}
	if n := utf8.RuneCountInString(note); n > MaxNote {
		return refused("has %d characters; at most %d are allowed", n, MaxNote)
	}

	for _, r := range note {
		if !unicode.IsPrint(r) {
			return refused("contains the unprintable character %U", r)
		}
	}

	return nil
}

// Ownership is who shall own the root of the volume, and with which mode. The group
// is left to a plugin that can see to it (VOLUME_MOUNT_GROUP). What is left out
// stays as it is.
type Ownership struct {
	UID  *uint32 `json:"uid,omitempty"`
	GID  *uint32 `json:"gid,omitempty"`
	Mode string  `json:"mode,omitempty"` // octal, as in "0770"
	// Recursive asks for all that is in the volume too, unless its root is as asked.
	Recursive bool `json:"recursive,omitempty"`
}

// Kinds of owners.
const (
	OwnerNone = "none" // the claim lives until it is detached
	OwnerPID  = "pid"  // a process
	OwnerUnit = "unit" // an invocation of a systemd unit
	// OwnerMount is the mount at At: once somebody unmounts it the claim is past. Until
	// it is there, it is the process PID, which asked for it.
	OwnerMount = "mount"
	// OwnerRuntime is a container runtime, for as long as containers of it refer to the
	// volume. No request names it; the runtime's volume plugin makes such claims.
	OwnerRuntime = "runtime"
)

// States of an owner that can end.
const (
	OwnerRunning = "running"
	OwnerGone    = "gone"    // the claim is being released
	OwnerUnknown = "unknown" // nobody answers for it, so it keeps its claim
)

// Owner is who keeps a claim alive.
type Owner struct {
	Kind string `json:"kind"`
	// PID is of the process as the agent sees it, or of a unit's main process
	// while it has one.
	PID int `json:"pid,omitempty"`
	// Unit is a unit of the system's service manager. Invocation is the one that
	// owns the claim; in a request it may be left out for the current one.
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`
	// Runtime is "docker" or "podman", References how many containers of it refer to
	// the volume.
	Runtime    string `json:"runtime,omitempty"`
	References int    `json:"references,omitempty"`
	// State and Command, the name of what the process runs, are set in answers.
	State   string `json:"state,omitempty"`
	Command string `json:"command,omitempty"`
}

// Claim is one alloc's right to one volume.
type Claim struct {
	Volume         string `json:"volume"`
	PluginID       string `json:"plugin_id"`
	Alloc          string `json:"alloc"`
	State          string `json:"state"`
	Wanted         bool   `json:"wanted"`
	ReadOnly       bool   `json:"read_only"`
	AccessMode     string `json:"access_mode"`
	AttachmentMode string `json:"attachment_mode"`
	Owner          Owner  `json:"owner"`
	// Path is where the volume is for this alloc: At if asked for, else Target.
	Path   string `json:"path"`
	Target string `json:"target"`
	At     string `json:"at,omitempty"`
	// AtFlags are options of the mount at At alone, joined with commas. AtWritable is set where At is left
	// writable while nothing is mounted there.
	AtFlags    string    `json:"at_flags,omitempty"`
	AtWritable bool      `json:"at_writable,omitempty"`
	Since      time.Time `json:"since"`
	Ownership
	// Adopted tells a claim that was rebuilt from what is mounted, after the
	// state database was lost. It counts as a writer.
	Adopted bool `json:"adopted,omitempty"`
	// Note is the text that the request gave.
	Note string `json:"note,omitempty"`
	// Remark is the agent's addition to a state that misleads by itself ("plugin unavailable").
	Remark string `json:"remark,omitempty"`
}
