package mount

import (
	"fmt"
	"path/filepath"
	"strings"
)

// UnitName returns the name of the mount unit for an absolute path, as systemd-escape --path
// --suffix=mount prints it. A slash becomes a dash. A dash, and any byte that the name of a unit
// cannot contain, becomes \xNN.
func UnitName(path string) string {
	path = strings.Trim(filepath.Clean(path), "/")
	if path == "" {
		return "-.mount"
	}

	var b strings.Builder
	for i := range len(path) {
		switch c := path[i]; {
		case c == '/':
			b.WriteByte('-')
		case c == '.' && i == 0, !UnitByte(c):
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}

	return b.String() + ".mount"
}

// UnitByte reports whether the name of a unit can contain the byte without an escape.
func UnitByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(":_.", c) >= 0
}
