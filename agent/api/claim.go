package api

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxNote is the maximum number of characters in a claim's note.
const MaxNote = 200

// The states of a claim, in the order in which a claim reaches them.
const (
	ClaimPending            = "pending"
	ClaimMounted            = "mounted"
	ClaimUnpublishing       = "unpublishing"
	ClaimNodeDetached       = "node-detached"
	ClaimControllerDetached = "controller-detached"
	ClaimReadyToFree        = "ready-to-free"
)

// ClaimRequest asks for a volume on behalf of an alloc. If access_mode or attachment_mode is empty,
// the agent uses the mode of the volume's existing claims. Without existing claims, it uses the
// first suitable capability of the volume. The same rule applies to empty mount_flags, which
// default to the flags of the existing claims, or else to those of the volume.
type ClaimRequest struct {
	ReadOnly       bool     `json:"read_only,omitempty"`
	AccessMode     string   `json:"access_mode,omitempty"`
	AttachmentMode string   `json:"attachment_mode,omitempty"`
	MountFlags     []string `json:"mount_flags,omitempty"`

	// At is an absolute path at which the agent also bind-mounts the volume.
	At string `json:"at,omitempty"`

	// AtFD is a file descriptor in the caller's process that is open on the directory At (O_PATH).
	// The agent then bind-mounts on exactly this directory and does not resolve the path. A caller
	// needs AtFD if the directory is mounted on demand (autofs), because resolving the path would
	// then wait for the caller itself. Only root may pass a descriptor. The descriptor must come
	// from the caller's own mount namespace, and the request must wait for the mount. A missing
	// AtFD means -1.
	AtFD *int `json:"at_fd,omitempty"`

	// AtFlags are options that apply only to the mount at At, named as in mount(8): nosuid, nodev,
	// noexec, noatime, nodiratime, relatime, strictatime, nosymfollow.
	AtFlags []string `json:"at_flags,omitempty"`

	// AtWritable keeps the directory At writable while nothing is mounted there. Without it, the
	// agent makes an empty directory immutable (ioctl_iflags(2)) before the first mount. No process
	// can then write to the disk below the mount point. The directory stays immutable until the
	// volume is deregistered.
	AtWritable bool `json:"at_writable,omitempty"`
	Ownership

	// Owner keeps the claim alive. Its Kind decides whether the agent uses PID, or Unit and
	// Invocation. With an empty Owner the claim lasts until it is detached.
	Owner Owner `json:"owner,omitzero"`
	// Note is a text about the claim for people. CheckNote defines the valid texts. A repeated
	// request may omit it.
	Note string `json:"note,omitempty"`
}

// CheckNote checks a claim's note. It returns an error with CodeInvalid if the note has more than
// MaxNote characters or an unprintable one.
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

// Ownership sets the user, group and mode of the volume's root directory. A plugin with
// VOLUME_MOUNT_GROUP sets the group itself. An empty field leaves that attribute unchanged.
type Ownership struct {
	UID  *uint32 `json:"uid,omitempty"`
	GID  *uint32 `json:"gid,omitempty"`
	Mode string  `json:"mode,omitempty"` // octal, such as "0770"
	// Recursive requests the same change for all files in the volume. The agent skips them if the
	// root directory already has the requested owner and mode.
	Recursive bool `json:"recursive,omitempty"`
}

// The kinds of owners.
const (
	OwnerNone = "none" // the claim lasts until it is detached
	OwnerPID  = "pid"  // a process
	OwnerUnit = "unit" // an invocation of a systemd unit

	// OwnerMount is the mount at At. The claim ends when that mount is unmounted. Until the mount
	// exists, the owner is the process PID that requested the claim.
	OwnerMount = "mount"

	// OwnerRuntime is a container runtime. It owns the claim as long as its containers refer to the
	// volume. Requests cannot use this kind: only the runtime's volume plugin makes such claims.
	OwnerRuntime = "runtime"
)

// The states of an owner that can end.
const (
	OwnerRunning = "running"
	OwnerGone    = "gone"    // the agent is detaching the claim
	OwnerUnknown = "unknown" // the agent cannot find out; the claim stays
)

// Owner is the process, unit, mount or container runtime whose end also ends the claim.
type Owner struct {
	Kind string `json:"kind"`

	// PID is the process id in the agent's pid namespace. In an answer about a unit, it is the
	// unit's main process.
	PID int `json:"pid,omitempty"`

	// Unit is a unit of the system's service manager. Invocation is the invocation that owns the
	// claim. A request may omit it, and then means the current invocation.
	Unit       string `json:"unit,omitempty"`
	Invocation string `json:"invocation,omitempty"`

	// Runtime is "docker" or "podman". References is the number of its containers that refer to the
	// volume.
	Runtime    string `json:"runtime,omitempty"`
	References int    `json:"references,omitempty"`

	// State and Command are set only in answers. Command is the name of the process's program.
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

	// Path is the directory or file at which the alloc finds the volume: At if the request set it,
	// and Target otherwise.
	Path   string `json:"path"`
	Target string `json:"target"`
	At     string `json:"at,omitempty"`

	// AtFlags are the options that apply only to the mount at At, joined with commas. AtWritable is
	// set if At stays writable while nothing is mounted there.
	AtFlags    string    `json:"at_flags,omitempty"`
	AtWritable bool      `json:"at_writable,omitempty"`
	Since      time.Time `json:"since"`
	Ownership

	// Adopted marks a claim that the agent rebuilt from the mount table after the loss of the state
	// database. The agent treats it as a writer.
	Adopted bool `json:"adopted,omitempty"`

	// Note is the note from the request.
	Note string `json:"note,omitempty"`
	// Remark is the agent's addition to State if State alone would mislead, such as "plugin
	// unavailable".
	Remark string `json:"remark,omitempty"`
}
