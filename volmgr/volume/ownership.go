package volume

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
)

// Ownership is the owner, group and mode that a claim asks for the volume's root. An empty field
// leaves the current value. Ownership is comparable.
type Ownership struct {
	UID  string `json:"uid,omitempty"`  // 0 to 4294967294, in digits
	GID  string `json:"gid,omitempty"`  // as UID
	Mode string `json:"mode,omitempty"` // octal, 0 to 7777

	// Recursive includes all files in the volume, unless the root is already as requested.
	Recursive bool `json:"recursive,omitempty"`

	// ByPlugin is set if the plugin applies the group (VOLUME_MOUNT_GROUP).
	ByPlugin bool `json:"by_plugin,omitempty"`

	// Default is set if UID and GID are defaults that the claim did not ask for. They are applied
	// only to a root that belongs to root of the host (0:0), and only if the storage permits that.
	Default bool `json:"default,omitempty"`
}

// Asked reports whether the ownership asks for anything.
func (o Ownership) Asked() bool { return o.UID != "" || o.GID != "" || o.Mode != "" }

// WithDefault adds the default owner, if there is one, unless an owner or a group is requested.
func (o Ownership) WithDefault(uid, gid string) Ownership {
	if uid != "" && gid != "" && o.UID == "" && o.GID == "" {
		o.UID, o.GID, o.Default = uid, gid, true
	}
	return o
}

// Explicit returns the ownership without a default.
func (o Ownership) Explicit() Ownership {
	if o.Default {
		o.UID, o.GID, o.Default = "", "", false
	}
	return o
}

// Check refuses values that no file can have.
func (o Ownership) Check() error {
	for name, id := range map[string]string{"uid": o.UID, "gid": o.GID} {
		// chown(2) reads the greatest number as "do not change".
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

// Here returns the part that the agent must apply on the host, without the part of the plugin.
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

// asked returns the request without a default and without decisions about it.
func (o Ownership) asked() Ownership {
	o.ByPlugin = false
	return o.Explicit()
}

// ownable refuses an ownership that the claim cannot set. It also decides whether the plugin
// applies the group.
func (q Request) ownable(volumeID string, mode *Mode, caps Caps) (Ownership, error) {
	o := q.Own

	// A plugin never gets a default group, because the plugin would give that group to every file
	// in the volume.
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

// owned reports whether the ownership of the volume's root needs no change on the host.
func (c Claim) owned() bool { return c.Owned || !c.Own.Here().Asked() }

// atFlags are the options that the mount at a claim's own directory may have, as mount(8) spells
// them. The last three exclude each other.
var atFlags = []string{"nosuid", "nodev", "noexec", "nosymfollow", "nodiratime", "noatime", "relatime", "strictatime"}

// AtFlags checks the mount options for a claim's own directory and joins them with commas. Each
// option appears once and in a fixed order, so that two lists of the same options are equal.
// AtFlags returns ErrInvalid for an unknown option, and for more than one of noatime, relatime and
// strictatime.
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

// Flags returns the options of the mount at the claim's own directory.
func (c Claim) Flags() []string {
	if c.AtFlags == "" {
		return nil
	}
	return strings.Split(c.AtFlags, ",")
}

// TargetFlags returns the options that the mount at the claim's target gets in addition to those of
// the plugin. These are nosuid and nodev, unless the volume's mount flags say suid or dev. The
// options of the claim's own directory are added, because the target shows the same files.
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

// lifted reports whether the mount flags cancel a default such as nosuid. Of the flag and its
// opposite, suid, the last one counts. One string may hold several flags, separated by commas.
// Commas in double quotes belong to a value.
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
