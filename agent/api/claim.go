package api

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxNote is the greatest number of characters in a claim's note.
const MaxNote = 200

// Claim states, in the order in which a claim passes through them.
const (
	ClaimPending            = "pending"
	ClaimMounted            = "mounted"
	ClaimUnpublishing       = "unpublishing"
	ClaimNodeDetached       = "node-detached"
	ClaimControllerDetached = "controller-detached"
	ClaimReadyToFree        = "ready-to-free"
)

// ClaimRequest asks for a volume on behalf of an alloc. An empty access_mode or attachment_mode
// means the mode in force, or else the first listed capability that fits. Empty mount_flags mean
// the flags in force, or else those of the volume.
type ClaimRequest struct {
	ReadOnly       bool     `json:"read_only,omitempty"`
	AccessMode     string   `json:"access_mode,omitempty"`
	AttachmentMode string   `json:"attachment_mode,omitempty"`
	MountFlags     []string `json:"mount_flags,omitempty"`

	// At is an absolute path where the agent also binds the volume.
	At string `json:"at,omitempty"`

	// AtFD is a descriptor of the caller that is open on At (O_PATH). The agent then binds on
	// exactly that directory and does not walk the path again. If the directory is mounted on
	// demand (autofs), such a walk would wait for the caller itself. Only root may lend a
	// descriptor, from its own mount namespace, and only to a request that waits. Leaving AtFD out
	// means -1.
	AtFD *int `json:"at_fd,omitempty"`

	// AtFlags are options of the mount at At alone, named as in mount(8): nosuid, nodev, noexec,
	// noatime, nodiratime, relatime, strictatime, nosymfollow.
	AtFlags []string `json:"at_flags,omitempty"`

	// AtWritable leaves At writable while nothing is mounted there. Otherwise the agent makes an
	// empty directory immutable (ioctl_iflags(2)) before the first mount, so that no process writes
	// to the disk beneath. The directory stays immutable until the volume is deregistered.
	AtWritable bool `json:"at_writable,omitempty"`
	Ownership

	// Owner keeps the claim alive. Its Kind decides whether PID, or Unit and Invocation, count. With
	// an empty Owner the claim lives until it is detached.
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

// Ownership sets the user, group and mode of the volume's root. A plugin with VOLUME_MOUNT_GROUP
// sets the group itself. An empty field leaves that attribute unchanged.
type Ownership struct {
	UID  *uint32 `json:"uid,omitempty"`
	GID  *uint32 `json:"gid,omitempty"`
	Mode string  `json:"mode,omitempty"` // octal, as in "0770"
	// Recursive changes all files in the volume too, unless its root already is as requested.
	Recursive bool `json:"recursive,omitempty"`
}

// Kinds of owners.
const (
	OwnerNone = "none" // the claim lives until it is detached
	OwnerPID  = "pid"  // a process
	OwnerUnit = "unit" // an invocation of a systemd unit

	// OwnerMount is the mount at At: the claim ends once that mount is unmounted. Until the mount
	// exists, the owner is the process PID that asked for it.
	OwnerMount = "mount"

	// OwnerRuntime is a container runtime, for as long as its containers refer to the volume.
	// Requests cannot name it; only the runtime's volume plugin makes such claims.
	OwnerRuntime = "runtime"
)

// States of an owner that can end.
const (
	OwnerRunning = "running"
	OwnerGone    = "gone"    // the agent is detaching the claim
	OwnerUnknown = "unknown" // the agent got no answer about the owner, so the owner keeps its claim
)

// Owner keeps a claim alive.
type Owner struct {
	Kind string `json:"kind"`

	// PID is the process as the agent sees it, or the current main process of a unit.
	PID int `json:"pid,omitempty"`

	// Unit is a unit of the system's service manager. Invocation is the invocation that owns the
	// claim. A request may leave it out to name the current one.
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`

	// Runtime is "docker" or "podman". References is the number of its containers that refer to the
	// volume.
	Runtime    string `json:"runtime,omitempty"`
	References int    `json:"references,omitempty"`

	// State and Command, the name of the process's program, are set in answers only.
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

	// Path is where this alloc finds the volume: At if it was requested, else Target.
	Path   string `json:"path"`
	Target string `json:"target"`
	At     string `json:"at,omitempty"`

	// AtFlags are options of the mount at At alone, joined with commas. AtWritable is set if At
	// stays writable while nothing is mounted there.
	AtFlags    string    `json:"at_flags,omitempty"`
	AtWritable bool      `json:"at_writable,omitempty"`
	Since      time.Time `json:"since"`
	Ownership

	// Adopted marks a claim that the agent rebuilt from the mount table after the state database
	// was lost. It counts as a writer.
	Adopted bool `json:"adopted,omitempty"`

	// Note is the text that the request gave.
	Note string `json:"note,omitempty"`
	// Remark is the agent's addition to a state that misleads by itself ("plugin unavailable").
	Remark string `json:"remark,omitempty"`
}
