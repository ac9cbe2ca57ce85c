package mount

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/fstab"
)

// mounted is a line of a mount table, see proc_pid_mountinfo(5).
type mounted struct {
	root, path, fsType, source string
}

// autofs reports whether the mount is an autofs, which mounts other file systems on demand.
func (m mounted) autofs() bool { return m.fsType == "autofs" }

// String describes the mount for people.
func (m mounted) String() string {
	if m.source == "" || m.source == "none" || m.source == m.fsType {
		return m.fsType
	}
	return m.fsType + " on " + m.source
}

// readTable parses a mount table. It keeps the order of the lines, so the topmost of several mounts
// at a path comes last. It skips lines that it cannot parse.
func readTable(text []byte) []mounted {
	var table []mounted
	for line := range bytes.Lines(text) {
		head, tail, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		// The source of a mount may be an empty text.
		before, after := strings.Split(head, " "), strings.Split(tail, " ")
		if !ok || len(before) < 6 || len(after) < 2 {
			continue
		}
		table = append(table, mounted{fstab.Unescape(before[3]), fstab.Unescape(before[4]), after[0], fstab.Unescape(after[1])})
	}

	return table
}

// at returns the mounts at a path, with the topmost last. It omits autofs mounts.
func at(table []mounted, path string) (found []mounted) {
	for _, m := range table {
		if m.path == path && !m.autofs() {
			found = append(found, m)
		}
	}
	return found
}

// autofsAt reports whether an autofs is mounted at the path.
func autofsAt(table []mounted, path string) bool {
	return slices.ContainsFunc(table, func(m mounted) bool { return m.path == path && m.autofs() })
}

// within reports whether path is dir itself or a path below dir.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, filepath.Clean(dir))
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}
