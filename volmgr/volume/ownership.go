package volume

import (
	"fmt"
	"strconv"
)

// Ownership is who shall own a volume's root, and what others may do with it, as a
// claim asks for. What is empty stays as it is. It is comparable.
type Ownership struct {
	UID  string `json:"uid,omitempty"`  // 0 to 4294967294, in digits
	GID  string `json:"gid,omitempty"`  // the same
	Mode string `json:"mode,omitempty"` // octal, 0 to 7777
	// Recursive asks for all that is in the volume too, unless its root is as asked.
	Recursive bool `json:"recursive,omitempty"`
	// ByPlugin is set where the plugin sees to the group (VOLUME_MOUNT_GROUP).
	ByPlugin bool `json:"by_plugin,omitempty"`
	// Default is set where nobody asked for UID and GID. They are then given only to a root
	// that belongs to root of the host (0:0), and only as far as the storage lets them be given.
	Default bool `json:"default,omitempty"`
}

// Asked reports whether anything is.
func (o Ownership) Asked() bool { return o.UID != "" || o.GID != "" || o.Mode != "" }

// WithDefault adds a default owner, if there is one, unless an owner or a group is asked for.
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

// Check refuses what no file can have.
func (o Ownership) Check() error {
	for name, id := range map[string]string{"uid": o.UID, "gid": o.GID} {
		// The greatest number means "as it is" to chown(2).
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

// Here is what is left to be done on the host: all but what the plugin sees to.
func (o Ownership) Here() Ownership {
	if o.ByPlugin {
		o.GID = ""
	}
	return o
}

// String words what is asked for.
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

// asked is what a request asked for, less what was decided on it and without a default.
func (o Ownership) asked() Ownership {
	o.ByPlugin = false
	return o.Explicit()
}

// ownable refuses an ownership that a claim cannot give, and says whether the
// plugin sees to the group.
func (q Request) ownable(volumeID string, mode *Mode, caps Caps) (Ownership, error) {
	o := q.Own
	// A plugin is never given a default: it would be the group of everything in the volume.
	gid := o.Explicit().GID
	o.ByPlugin = gid != "" && mode.Group == gid
	switch {
	case !o.Asked():
	case mode.Attachment == BlockDevice:
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

// owned reports whether nothing is left to be done about who owns the volume's
// root.
func (c Claim) owned() bool { return c.Owned || !c.Own.Here().Asked() }
