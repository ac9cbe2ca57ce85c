package proc

import (
	"io"
	"os"

	"github.com/moby/sys/mountinfo"
)

// Mount is one line of a mount table (proc_pid_mountinfo(5)).
type Mount = mountinfo.Info

// Filter selects mounts. It reports whether to skip a mount, and whether to stop after it.
type Filter = mountinfo.FilterFunc

// OwnMounts is the path of the mount table of this process's mount namespace.
const OwnMounts = "/proc/self/mountinfo"

// ReadMounts returns the mounts in a mount table, except those that filter skips. It does not parse
// the lines for which keep returns false. A nil filter skips no mount, and a nil keep accepts every
// line. A name of 16 KiB or more is truncated.
func ReadMounts(file string, keep func(line []byte) bool, filter Filter) ([]*Mount, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // a file opened for reading has no data to lose

	return ParseMounts(f, keep, filter)
}

// ParseMounts is like ReadMounts, for the text of a mount table.
func ParseMounts(table io.Reader, keep func(line []byte) bool, filter Filter) ([]*Mount, error) {
	return mountinfo.GetMountsFromReader(&tableReader{lines: NewLines(table), keep: keep}, filter)
}

// tableReader passes the lines that keep accepts to the parser, one by one, so that the table is
// never in memory as a whole. The parser fails for the whole table if a line has 64 KiB. Lines
// returns no such line.
type tableReader struct {
	lines *Lines
	keep  func(line []byte) bool
	line  []byte // the part of the current line that is not read yet
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
