package mount

import (
	"fmt"
	"path/filepath"
	"strings"
)

// UnitName returns the name of the mount unit for an absolute path, which is the same as the output
// of "systemd-escape --path --suffix=mount". It replaces a slash with a dash. It replaces a dash,
// and any byte that is not allowed in a unit name, with \xNN.
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

// UnitByte reports whether a byte is allowed in a unit name without an escape.
func UnitByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(":_.", c) >= 0
}
