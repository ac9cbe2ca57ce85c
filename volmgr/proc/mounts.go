package proc

import (
	"io"
	"os"

	"github.com/moby/sys/mountinfo"
)

// Mount is one line of a mount table (proc_pid_mountinfo(5)).
type Mount = mountinfo.Info

// Filter selects mounts. Its first result reports whether to skip a mount, and its second result
// whether to stop after the mount.
type Filter = mountinfo.FilterFunc

// OwnMounts is the path of the mount table of this process's mount namespace.
const OwnMounts = "/proc/self/mountinfo"

// ReadMounts returns the mounts in a mount table, except those that filter skips. It does not parse
// the lines for which keep returns false. A nil filter skips no mount, and a nil keep accepts every
// line. ReadMounts truncates names of 16 KiB or more.
func ReadMounts(file string, keep func(line []byte) bool, filter Filter) ([]*Mount, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the file was only read, so closing it can lose no data

	return ParseMounts(f, keep, filter)
}

// ParseMounts is like ReadMounts, for the text of a mount table.
func ParseMounts(table io.Reader, keep func(line []byte) bool, filter Filter) ([]*Mount, error) {
	return mountinfo.GetMountsFromReader(&tableReader{lines: NewLines(table), keep: keep}, filter)
}

// tableReader passes to the parser only those lines that keep accepts, one by one. The whole table
// is therefore never in memory. The parser would fail for the whole table if one line had 64 KiB,
// but Lines returns no such line.
type tableReader struct {
	lines *Lines
	keep  func(line []byte) bool
	line  []byte // the unread remainder of the current line
}

// Read implements io.Reader.
func (r *tableReader) Read(p []byte) (int, error) {
	for len(r.line) == 0 {
		line, err := r.lines.Next()
		if err != nil {
			return 0, err
		}
		if r.keep == nil || r.keep(line) {
			r.line = line
		}
	}

	n := copy(p, r.line)
	r.line = r.line[n:]
	return n, nil
}
