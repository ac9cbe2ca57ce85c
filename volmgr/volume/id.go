package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/call"
)

// These constants are the maximum lengths of path components, in bytes. With the default roots,
// every path then has at most the 128 bytes that a CSI plugin must accept. Every socket path has at
// most the 107 bytes of sockaddr_un.
const (
	maxPluginComponent = 24
	maxAllocComponent  = 36
	maxVolumeComponent = 34
	maxPrivateVolume   = maxVolumeComponent - len("/"+PrivateDir)
	maxID              = 128
)

// PrivateDir is the name of the directory that contains the private targets of an alloc. Only root
// can enter it. The path component of a volume never begins with a dot, so no volume has this name.
const PrivateDir = ".p"

var pluginID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)

// CheckID returns an error unless id is valid for a volume or an alloc. A valid id is 1 to 128
// bytes of printable UTF-8 without "/", and is neither "." nor "..". The first parameter is the
// name of the id in the error message, such as "volume id".
func CheckID(what, id string) error {
	switch {
	case id == "":
		return Errorf(ErrInvalid, "%s is missing", what)
	case len(id) > maxID:
		return Errorf(ErrInvalid, "%s %.24q… has %d bytes; at most %d are allowed", what, id, len(id), maxID)
	case id == "." || id == "..":
		return Errorf(ErrInvalid, "%s %q is not allowed", what, id)
	case strings.Contains(id, "/"):
		return Errorf(ErrInvalid, "%s %q contains a slash", what, id)
	case !utf8.ValidString(id):
		return Errorf(ErrInvalid, "%s %q is not UTF-8", what, id)
	}

	for _, r := range id {
		if !unicode.IsPrint(r) {
			return Errorf(ErrInvalid, "%s %q contains the unprintable character %U", what, id, r)
		}
	}

	return nil
}

// CheckNewID returns an error unless id is valid for a new volume or alloc. In addition to the
// checks of CheckID, it refuses an id that begins with "-", because commands would read such an id
// as an option. An id that an earlier release stored remains valid.
func CheckNewID(what, id string) error {
	if err := CheckID(what, id); err != nil {
		return err
	}
	if strings.HasPrefix(id, "-") {
		return Errorf(ErrInvalid, "%s %q begins with \"-\", which commands read as an option", what, id).
			WithHint("choose an id that begins with another character")
	}
	return nil
}

// CheckPluginID returns an error unless id is valid for a plugin. A valid id is 1 to 48 characters
// of [A-Za-z0-9._-], and is neither "." nor "..".
func CheckPluginID(id string) error {
	if !pluginID.MatchString(id) || id == "." || id == ".." {
		return Errorf(ErrInvalid, "plugin id %.64q is not 1 to 48 characters of A-Z a-z 0-9 . _ -", id)
	}
	return nil
}

// PluginComponent returns the path component for a plugin id. Only this function and the three
// functions below convert an id to a path component.
func PluginComponent(id string) string { return component(id, maxPluginComponent) }

// AllocComponent returns the path component for an alloc's name.
func AllocComponent(id string) string { return component(id, maxAllocComponent) }

// VolumeComponent returns the path component for a volume id.
func VolumeComponent(id string) string { return component(id, maxVolumeComponent) }

// PrivateComponent returns the path component for a volume id below PrivateDir. Its result is
// shorter than that of VolumeComponent, so that a private target is not longer than other targets.
func PrivateComponent(id string) string { return component(id, maxPrivateVolume) }

// KeyComponent returns the component of a key in the cluster's store for an id. It escapes the id
// like the path components, but never shortens it. ParseKeyComponent is the inverse function.
func KeyComponent(id string) string { return component(id, 3*len(id)) }

// ParseKeyComponent returns the id in a component that KeyComponent returned. For any other text,
// ok is false.
func ParseKeyComponent(s string) (id string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '~' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}

		raw, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.WriteByte(raw[0])
		i += 2
	}

	return b.String(), KeyComponent(b.String()) == s
}

// TargetDirs returns the directories that the agent makes for a target, with the innermost
// directory first. These are PrivateDir, if the target is private, and the directory of the alloc.
func TargetDirs(target string) []string {
	dir := filepath.Dir(target)
	if filepath.Base(dir) == PrivateDir {
		return []string{dir, filepath.Dir(dir)}
	}
	return []string{dir}
}

// component returns id as a path component of at most limit bytes. It keeps the characters
// [A-Za-z0-9._-]. It escapes a leading dot and every other byte, including "~", as "~XX". If the
// result is too long, component keeps a prefix and appends "~" and 12 hex digits of the id's
// SHA-256. Two different ids therefore never have the same component.
func component(id string, limit int) string {
	var b strings.Builder
	for i := range len(id) {
		c := id[i]
		if keep(c) && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "~%02X", c)
		}
	}

	s := b.String()
	if len(s) <= limit {
		return s
	}

	sum := sha256.Sum256([]byte(id))
	return s[:limit-13] + "~" + hex.EncodeToString(sum[:6])
}

func keep(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// These constants are limits of CSI, in bytes (see "Size Limits" and "GetPluginInfo" in the
// specification). A driver may refuse a longer value, truncate it, or crash.
const (
	MaxMap    = 4 << 10 // all keys and values of a map together
	MaxNodeID = 256     // a node id
	MaxDriver = 63      // the name of a driver
)

// MaxHandle limits the ids that a storage system gives to volumes and snapshots, in bytes. CSI
// allows 128 bytes, but the resource ids of Azure's disks have about 200. Kubernetes accepts such
// ids, so the agent accepts them too.
const MaxHandle = 1024

// driverName matches the names that CSI allows for drivers. Such a name begins and ends with a
// letter or a digit, and may contain dashes and dots.
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)

// CheckDriver returns an error unless name is valid for a CSI driver. A valid name has 1 to 63
// letters, digits, dashes and dots. It begins and ends with a letter or a digit.
func CheckDriver(name string) error {
	if len(name) > MaxDriver || !driverName.MatchString(name) {
		return Errorf(ErrInvalid, "%.80q is no name of a CSI driver, which has 1 to %d letters, digits, \"-\" and \".\", and a letter or digit at both ends", name, MaxDriver)
	}
	return nil
}

// TooLong describes by how much a text exceeds a limit of CSI. It returns "" if the text is short
// enough.
func TooLong(what, text string, most int) string {
	if len(text) <= most {
		return ""
	}
	return fmt.Sprintf("its %s has %d bytes; at most %d are allowed", what, len(text), most)
}

// TooLarge describes by how much a map exceeds the limit of CSI. It returns "" if the map is small
// enough.
func TooLarge(what string, m map[string]string) string {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}

	if n <= MaxMap {
		return ""
	}
	return fmt.Sprintf("its %s has %d bytes; CSI allows %d", what, n, MaxMap)
}

// CheckCapability returns an error if a capability contains an unknown mode.
func CheckCapability(c call.Capability) error {
	if !slices.Contains(call.AccessModes, c.Access) {
		return Errorf(ErrInvalid, "unknown access mode %q", c.Access).WithHint("one of %v", call.AccessModes)
	}
	if c.Attachment != call.FileSystem && c.Attachment != call.BlockDevice {
		return Errorf(ErrInvalid, "unknown attachment mode %q", c.Attachment).WithHint("%s or %s", call.FileSystem, call.BlockDevice)
	}
	return nil
}
