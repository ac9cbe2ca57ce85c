package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Longest path components, in bytes, so that with default roots every path
// fits the 128 bytes that CSI makes plugins accept and every socket fits the
// 107 of sockaddr_un.
const (
	maxPluginComponent = 24
	maxAllocComponent  = 36
	maxVolumeComponent = 34
	maxPrivateVolume   = maxVolumeComponent - len("/"+PrivateDir)
	maxID              = 128
)

// PrivateDir holds the private targets of an alloc: only root can enter it. No component
// begins with a dot, so no volume has this name.
const PrivateDir = ".p"

var pluginID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)

// CheckID refuses what cannot be a volume's or an alloc's id: it is 1 to 128
// bytes of printable UTF-8 without "/", and neither "." nor "..". What names
// the kind of id in the message ("volume id").
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

// CheckNewID refuses what CheckID refuses, and an id that begins with "-", which
// commands would read as an option. It is for ids that are about to be stored; one
// that an earlier release stored stays valid.
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

// CheckPluginID refuses what cannot be a plugin's id: 1 to 48 of
// [A-Za-z0-9._-], and neither "." nor "..".
func CheckPluginID(id string) error {
	if !pluginID.MatchString(id) || id == "." || id == ".." {
		return Errorf(ErrInvalid, "plugin id %.64q is not 1 to 48 characters of A-Z a-z 0-9 . _ -", id)
	}
	return nil
}

// PluginComponent is the path component of a plugin's id. This function and the
// three below are the only way from an id to a path.
func PluginComponent(id string) string { return component(id, maxPluginComponent) }

// AllocComponent is the path component of an alloc's id.
func AllocComponent(id string) string { return component(id, maxAllocComponent) }

// VolumeComponent is the path component of a volume's id.
func VolumeComponent(id string) string { return component(id, maxVolumeComponent) }

// PrivateComponent is the path component of a volume's id below PrivateDir. It is shorter,
// so that a private target is no longer than any other.
func PrivateComponent(id string) string { return component(id, maxPrivateVolume) }

// TargetDirs returns the directories that the agent makes for a target, the innermost
// first: the alloc's, and PrivateDir in it where the target is private.
func TargetDirs(target string) []string {
	dir := filepath.Dir(target)
	if filepath.Base(dir) == PrivateDir {
		return []string{dir, filepath.Dir(dir)}
	}
	return []string{dir}
}

// component keeps [A-Za-z0-9._-]; a leading dot and every other byte become
// "~XX". What is longer than limit keeps a prefix and ends in "~" and 12 hex
// digits of the id's SHA-256. "~" itself is escaped, so that no two ids of
// allowed length share a component.
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
