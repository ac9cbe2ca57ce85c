package cli

import (
	"fmt"
	"path/filepath"
	"strings"
)

// mountUnit is the name of systemd's mount unit for an absolute path, as
// systemd-escape(1) makes it with --path and --suffix=mount: a slash becomes a dash,
// and what may not stand in the name of a unit, or is a dash itself, becomes \xNN.
func mountUnit(path string) string {
	path = strings.Trim(filepath.Clean(path), "/")
	if path == "" {
		return "-.mount"
	}
	var b strings.Builder
	for i := range len(path) {
		switch c := path[i]; {
		case c == '/':
			b.WriteByte('-')
		case c == '.' && i == 0, !unitByte(c):
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + ".mount"
}

// unitByte reports whether a byte stands for itself in the name of a unit.
func unitByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(":_.", c) >= 0
}
