package volume

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Ownership is the owner, group and mode that a claim requests for the volume's root. An empty
// field means that the current value must not change. Ownership must be comparable with ==.
type Ownership struct {
	UID  string `json:"uid,omitempty"`  // user id, 0 to 4294967294, in decimal digits
	GID  string `json:"gid,omitempty"`  // group id, in the same form as UID
	Mode string `json:"mode,omitempty"` // octal digits, 0 to 7777

	// Recursive extends the change to all files in the volume. If the root already has the
	// requested ownership, Recursive has no effect.
	Recursive bool `json:"recursive,omitempty"`

	// ByPlugin is set if the plugin sets the group (VOLUME_MOUNT_GROUP).
	ByPlugin bool `json:"by_plugin,omitempty"`

	// Default is set if UID and GID are defaults, which the claim did not request. The agent
	// applies them only if the volume's root belongs to 0:0 on the host, and only if the storage
	// permits it.
	Default bool `json:"default,omitempty"`
}

// Asked reports whether the ownership requests any change.
func (o Ownership) Asked() bool { return o.UID != "" || o.GID != "" || o.Mode != "" }

// WithDefault returns the ownership, with the default owner if the claim requests neither owner nor
// group.
func (o Ownership) WithDefault(uid, gid string) Ownership {
	if uid != "" && gid != "" && o.UID == "" && o.GID == "" {
		o.UID, o.GID, o.Default = uid, gid, true
	}
	return o
}

// Explicit returns the ownership without the default owner.
func (o Ownership) Explicit() Ownership {
	if o.Default {
		o.UID, o.GID, o.Default = "", "", false
	}
	return o
}

// Check returns an error if a value is not valid for any file.
func (o Ownership) Check() error {
	for name, id := range map[string]string{"uid": o.UID, "gid": o.GID} {
		// chown(2) interprets the greatest possible id as "do not change".
		if n, err := strconv.ParseUint(id, 10, 32); id != "" && (err != nil || n == 1<<32-1) {
			return Errorf(ErrInvalid, "%q is no %s: it is a number from 0 to %d", id, name, uint32(1<<32-2))
		}
	}

	if m, err := strconv.ParseUint(o.Mode, 8, 32); o.Mode != "" && (err != nil || m > 0o7777) {
		return Errorf(ErrInvalid, "%q is no mode: it is an octal number from 0 to 7777, as in 0770", o.Mode)
	}
	if o.Recursive && !o.Asked() {
		return Errorf(ErrInvalid, "recursive asks for nothing by itself").WithHint("give a uid, gid or mode with it")
	}
	if o.Default && (o.UID == "" || o.GID == "" || o.Recursive) {
		return Errorf(ErrInvalid, "a default owner has a uid and a gid, and is for the root alone")
	}

	return nil
}

// Here returns the part of the ownership that the agent itself must apply. If the plugin sets the
// group, Here omits the group.
func (o Ownership) Here() Ownership {
	if o.ByPlugin {
		o.GID = ""
	}
	return o
}

// String describes the requested ownership.
func (o Ownership) String() string {
	if !o.Asked() {
		return "as it is"
	}

	s := ""
	for _, part := range []struct{ name, value string }{{"uid", o.UID}, {"gid", o.GID}, {"mode", o.Mode}} {
		if part.value != "" {
			s += fmt.Sprintf("%s %s, ", part.name, part.value)
		}
	}

	if o.Recursive {
		s += "recursive, "
	}
	if s = s[:len(s)-2]; o.Default {
		s += " (uid and gid only if it belonged to root)"
	}

	return s
}

// asked returns the ownership as the user requested it. It omits the default owner, and clears
// ByPlugin.
func (o Ownership) asked() Ownership {
	o.ByPlugin = false
	return o.Explicit()
}

// ownable returns the ownership that the claim gets, and decides whether the plugin sets the group.
// It returns an error if the ownership of the volume's root cannot be changed for this claim.
func (q Request) ownable(volumeID string, mode *Mode, caps plugin.Caps) (Ownership, error) {
	o := q.Own

	// The agent never sends a default group to a plugin, because the plugin would give that group
	// to every file in the volume.
	gid := o.Explicit().GID
	o.ByPlugin = gid != "" && mode.Group == gid

	switch {
	case !o.Asked():
	case mode.Attachment == call.BlockDevice:
		return o, Errorf(ErrRefused, "volume %q is claimed as a block device, whose owner and mode are the host's: uid, gid and mode are for file systems", volumeID)
	case q.ReadOnly && o.Here().Asked():
		return o, Errorf(ErrRefused, "a claim that only reads cannot change who owns volume %q (%s)", volumeID, o.Here())
	case caps.MountGroup && gid != "" && !o.ByPlugin:
		return o, Errorf(ErrRefused, "volume %q is mounted for the group of its first claim (%s); gid %s must wait until it is free",
			volumeID, groupWords(mode.Group), gid)
	}

	return o, nil
}

func groupWords(gid string) string {
	if gid == "" {
		return "none was asked for"
	}
	return "gid " + gid
}

// owned reports whether the agent need not change the ownership of the volume's root.
func (c Claim) owned() bool { return c.Owned || !c.Own.Here().Asked() }

// atFlags lists the permitted options of the bind mount on a claim's own directory, as mount(8)
// writes them. At most one of the last three can be set.
var atFlags = []string{"nosuid", "nodev", "noexec", "nosymfollow", "nodiratime", "noatime", "relatime", "strictatime"}

// AtFlags returns the options of the bind mount on a claim's own directory as one text, separated
// by commas. Each option appears once and in a fixed order, so that two lists of the same options
// are equal. AtFlags returns ErrInvalid for an unknown option, and if more than one of noatime,
// relatime and strictatime is set.
func AtFlags(flags []string) (string, error) {
	for _, f := range flags {
		if !slices.Contains(atFlags, f) {
			return "", Errorf(ErrInvalid, "unknown option %q for a mount point; one of %s", f, strings.Join(atFlags, ", ")).
				WithHint("options of the volume's file system belong in mount_flags; read-only is read_only")
		}
	}

	sorted := slices.DeleteFunc(slices.Clone(atFlags), func(f string) bool { return !slices.Contains(flags, f) })
	var times []string
	for _, f := range sorted {
		if f == "noatime" || f == "relatime" || f == "strictatime" {
			times = append(times, f)
		}
	}

	if len(times) > 1 {
		return "", Errorf(ErrInvalid, "a mount has one of the options %s, not all", strings.Join(times, ", "))
	}

	return strings.Join(sorted, ","), nil
}

// Flags returns the options of the bind mount on the claim's own directory.
func (c Claim) Flags() []string {
	if c.AtFlags == "" {
		return nil
	}
	return strings.Split(c.AtFlags, ",")
}

// TargetFlags returns the mount options that the agent sets at the claim's target in addition to
// those of the plugin. These are nosuid and nodev, unless the volume's mount flags contain suid or
// dev. The options of the claim's own directory also apply to the target, because both show the
// same files.
func (c Claim) TargetFlags(mountFlags []string) []string {
	var flags []string
	for _, f := range []string{"nosuid", "nodev"} {
		if !lifted(f, mountFlags) {
			flags = append(flags, f)
		}
	}

	for _, f := range c.Flags() {
		if !slices.Contains(flags, f) {
			flags = append(flags, f)
		}
	}

	return flags
}

// lifted reports whether the volume's mount flags cancel a default flag such as nosuid. If the
// mount flags contain both the flag and its opposite, the last one counts. One string may contain
// several flags, separated by commas. Commas inside double quotes are part of a value.
func lifted(flag string, mountFlags []string) bool {
	opposite, quoted, is := strings.TrimPrefix(flag, "no"), false, false
	for _, f := range strings.FieldsFunc(strings.Join(mountFlags, ","), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	}) {
		switch strings.TrimSpace(f) {
		case opposite:
			is = true
		case flag:
			is = false
		}
	}

	return is
}
