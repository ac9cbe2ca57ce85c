package spec

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxID is the maximum length of a volume or alloc id, in bytes.
const MaxID = 128

var pluginID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)

// CheckVolumeID returns an error if a text is not a valid volume id. A valid id has 1 to 128 bytes
// of printable text without "/", and is neither "." nor "..".
func CheckVolumeID(id string) error { return checkID("volume id", id) }

// CheckAlloc returns an error if a text is not a valid alloc id. The rules are the same as for
// volume ids.
func CheckAlloc(id string) error { return checkID("alloc", id) }

// CheckSnapshotName returns an error if a text is not a valid snapshot name. The rules are the same
// as for volume ids.
func CheckSnapshotName(name string) error { return checkID("snapshot name", name) }

// CheckPluginID returns an error if a text is not a valid plugin id. A valid id has 1 to 48
// letters, digits, ".", "_" and "-", and is neither "." nor "..".
func CheckPluginID(id string) error {
	switch {
	case id == "":
		return errors.New("plugin id is empty")
	case len(id) > 48:
		return fmt.Errorf("plugin id %s is %d bytes long, more than 48", quote(id), len(id))
	case !pluginID.MatchString(id) || id == "." || id == "..":
		return fmt.Errorf(`bad plugin id %s: letters, digits, ".", "_" and "-" are allowed`, quote(id))
	}

	return nil
}

func checkID(what, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%s is empty", what)
	case len(id) > MaxID:
		return fmt.Errorf("%s %s is %d bytes long, more than %d", what, quote(id), len(id), MaxID)
	case id == "." || id == "..":
		return fmt.Errorf("%s %s is not allowed", what, quote(id))
	case strings.Contains(id, "/"):
		return fmt.Errorf("bad %s %s: it contains a slash", what, quote(id))
	case !printable(id):
		return fmt.Errorf("bad %s %s: only printable characters are allowed", what, quote(id))
	}

	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// quote quotes a text for a message. It shortens a long text.
func quote(s string) string { return strconv.Quote(shortened(s)) }

func shortened(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}

	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}

	return s[:cut] + "…"
}
