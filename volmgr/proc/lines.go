package proc

import (
	"bufio"
	"errors"
	"io"
)

// LongestLine is the maximum length, in bytes, of a line that Lines returns.
const LongestLine = 60_000

// These limits, in bytes, apply to the fields of a longer line. A path in a mount table
// (proc_pid_mountinfo(5)) may have PATH_MAX bytes even if the kernel escapes each of them. Of the
// other fields the agent needs only the beginning.
const (
	longestPath  = 16 << 10
	longestField = 8 << 10
	rootField    = 3
	pointField   = 4
)

// Lines reads a file line by line in bounded memory. It is for files in which users choose some of
// the names. In a line of LongestLine bytes or more, Lines truncates long fields. The fields keep
// their positions.
//
// Every user can have a mount namespace, and every process can map files. The kernel shows paths of
// any length, because a process can enter nested directories one by one. A line may therefore have
// megabytes, and a table gigabytes.
type Lines struct {
	in   *bufio.Reader
	room []byte // the copy of a long line
}

// NewLines returns a Lines for a file.
func NewLines(file io.Reader) *Lines { return &Lines{in: bufio.NewReaderSize(file, LongestLine)} }

// Next returns the next line. The line ends with its newline, except that the last line may have
// none. The line is valid until the next call. At the end of the file, the error is io.EOF.
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

// whole removes io.EOF if there is a last line to return.
func whole(line []byte, err error) ([]byte, error) {
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return line, err
}

// cutter copies a line and truncates its long fields.
type cutter struct {
	out   []byte
	field int // the index of the current field, from 0
	size  int // the number of bytes in the current field so far
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
