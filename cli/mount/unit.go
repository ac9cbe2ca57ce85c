package mount

import (
	"fmt"
	"path/filepath"
	"strings"
)

// UnitName returns the name of systemd's mount unit for an absolute path, as systemd-escape(1)
// does with --path and --suffix=mount. A slash becomes a dash. A dash, and any byte that a unit's
// name cannot contain, becomes \xNN.
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

// UnitByte reports whether a byte needs no escape in the name of a unit.
func UnitByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(":_.", c) >= 0
}
