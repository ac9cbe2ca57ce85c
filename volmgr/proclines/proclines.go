// Package proclines reads mount tables and other procfs files line by line, in bounded memory.
// Users choose the names in these files.
//
// Any user can have a mount namespace, and any process can map files. The kernel shows paths of any
// length, because users can build them by entering directories one by one. A line may therefore
// have megabytes, and a table gigabytes.
package proclines

import (
	"bufio"
	"errors"
	"io"
)

// Longest is the size of the longest line that a Reader returns, in bytes.
const Longest = 60_000

// Limits of the fields in a longer line, in bytes. The paths of a mount table
// (proc_pid_mountinfo(5)) get enough room for PATH_MAX bytes, all of them escaped. Of the other
// fields only the beginning matters.
const (
	longestPath  = 16 << 10
	longestField = 8 << 10
	rootField    = 3
	pointField   = 4
)

// Reader returns the lines of a file. If a line has Longest bytes or more, the Reader cuts off the
// ends of long fields. All fields keep their positions.
type Reader struct {
	in   *bufio.Reader
	room []byte // memory for a shortened line
}

// New returns a Reader of a file.
func New(file io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(file, Longest)} }

// Next returns the next line with its newline, which may be missing in the last line. The line is
// valid until the next call. At the end, the error is io.EOF.
func (r *Reader) Next() ([]byte, error) {
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
		case len(c.out) == Longest-1:
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
