package proc

import (
	"bufio"
	"errors"
	"io"
)

// LongestLine is the longest line that Lines returns, in bytes.
const LongestLine = 60_000

// Limits of the fields in a longer line, in bytes. The paths of a mount table
// (proc_pid_mountinfo(5)) get enough room for PATH_MAX bytes, all of them escaped. Of the other
// fields only the beginning matters.
const (
	longestPath  = 16 << 10
	longestField = 8 << 10
	rootField    = 3
	pointField   = 4
)

// Lines returns the lines of a file in which users choose the names, one at a time and in bounded
// memory. In a line of LongestLine bytes or more, long fields lack their ends. The fields keep
// their positions.
//
// Every user can have a mount namespace, and every process can map files. The kernel shows paths
// of any length, because it builds them from directories that were entered one by one. So a line
// may have megabytes, and a table gigabytes.
type Lines struct {
	in   *bufio.Reader
	room []byte // the copy of a long line
}

// NewLines returns the lines of a file.
func NewLines(file io.Reader) *Lines { return &Lines{in: bufio.NewReaderSize(file, LongestLine)} }

// Next returns the next line with its newline, which the last one may lack. The line is valid
// until the next call. The error is io.EOF at the end.
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

// whole drops io.EOF if there is a last line to return.
func whole(line []byte, err error) ([]byte, error) {
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return line, err
}

// cutter copies a line without the ends of its long fields.
type cutter struct {
	out   []byte
	field int // number of the current field, from 0
	size  int // bytes of the current field so far
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
