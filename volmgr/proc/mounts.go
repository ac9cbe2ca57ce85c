package proc

import (
	"io"
	"os"

	"github.com/moby/sys/mountinfo"
)

// Mount is one line of a mount table (proc_pid_mountinfo(5)).
type Mount = mountinfo.Info

// Filter selects mounts: it reports whether to skip a mount, and whether to stop reading after it.
type Filter = mountinfo.FilterFunc

// OwnMounts is the mount table of this process's mount namespace.
const OwnMounts = "/proc/self/mountinfo"

// ReadMounts returns the mounts in a mount table that filter does not skip; a nil filter skips
// none. ReadMounts does not parse lines that keep refuses; a nil keep refuses none. A name of
// 16 KiB or more lacks its end.
func ReadMounts(file string, keep func(line []byte) bool, filter Filter) ([]*Mount, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // It was only read.

	return ParseMounts(f, keep, filter)
}

// ParseMounts returns the mounts in the text of a mount table, as ReadMounts does.
func ParseMounts(table io.Reader, keep func(line []byte) bool, filter Filter) ([]*Mount, error) {
	return mountinfo.GetMountsFromReader(&tableReader{lines: NewLines(table), keep: keep}, filter)
}

// tableReader yields the lines of a mount table that keep accepts, one after another, so that
// no table is held in memory. The parser fails the whole table over a line of 64 KiB, so the
// lines are shorter.
type tableReader struct {
	lines *Lines
	keep  func(line []byte) bool
	line  []byte // the unread rest of the current line
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
