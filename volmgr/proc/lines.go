package proc

import (
	"bufio"
	"errors"
	"io"
)

// LongestLine is the maximum length, in bytes, of a line that Lines returns.
const LongestLine = 60_000

// These constants are the maximum lengths, in bytes, of the fields in a line that is longer than
// LongestLine. A path in a mount table (proc_pid_mountinfo(5)) may have PATH_MAX bytes, even if the
// kernel escapes every byte. The agent needs only the beginning of the other fields.
const (
	longestPath  = 16 << 10
	longestField = 8 << 10
	rootField    = 3
	pointField   = 4
)

// Lines reads a file line by line in bounded memory. It is for files in which users choose some of
// the names. If a line has LongestLine bytes or more, Lines truncates its long fields. The order
// and the number of the fields do not change.
//
// Every user can have a mount namespace, and every process can map files. The kernel shows paths of
// any length, because a process can enter nested directories one by one. A line may therefore have
// megabytes, and a mount table may have gigabytes.
type Lines struct {
	in   *bufio.Reader
	room []byte // holds the copy of a long line
}

// NewLines returns a Lines that reads the file.
func NewLines(file io.Reader) *Lines { return &Lines{in: bufio.NewReaderSize(file, LongestLine)} }

// Next returns the next line. The line includes its newline, which only the last line may lack. The
// line is valid until the next call. At the end of the file, the error is io.EOF.
func (r *Lines) Next() ([]byte, error) {
	chunk, err := r.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return whole(chunk, err)
	}

	cut := cutter{out: r.room[:0]}
	for errors.Is(err, bufio.ErrBufferFull) {
		cut.add(chunk)
		chunk, err = r.in.ReadSlice('\n')
	}

	cut.add(chunk)
	r.room = cut.out
	return whole(r.room, err)
}

// whole returns the line and the error, but removes io.EOF if the line is not empty.
func whole(line []byte, err error) ([]byte, error) {
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return line, err
}

// cutter copies a line and truncates the long fields.
type cutter struct {
	out   []byte
	field int // index of the current field, starting at 0
	size  int // number of bytes of the current field so far
}

func (c *cutter) add(chunk []byte) {
	for _, b := range chunk {
		most := longestField
		if c.field == rootField || c.field == pointField {
			most = longestPath
		}
		switch {
		case b == '\n':
		case len(c.out) == LongestLine-1:
			continue
		case b == ' ':
			c.field, c.size = c.field+1, 0
		case c.size == most:
			continue
		default:
			c.size++
		}

		c.out = append(c.out, b)
	}
}
