// Package proclines reads mount tables and other files of procfs in which users choose the
// names, line by line and in bounded memory.
//
// Any user can have a mount namespace, and any process can map files. The kernel shows the
// paths by names of any length, because it builds them from directories that were entered one
// by one: a line may have megabytes, and a table gigabytes.
package proclines

import (
	"bufio"
	"errors"
	"io"
)

// Longest is the longest line that a Reader returns, in bytes.
const Longest = 60_000

// Bounds of the fields in a line that is longer, in bytes. The paths of a mount table
// (proc_pid_mountinfo(5)) have room for PATH_MAX with every byte escaped. Of the other fields
// only the beginning matters.
const (
	longestPath  = 16 << 10
	longestField = 8 << 10
	rootField    = 3
	pointField   = 4
)

// Reader returns the lines of a file. In a line that has Longest bytes or more the ends of long
// fields are missing. The others stay where they are.
type Reader struct {
	in   *bufio.Reader
	room []byte // of a line that was cut
}

// New returns a Reader of a file.
func New(file io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(file, Longest)} }

// Next returns the next line with its newline, which the last one may lack. The line is valid
// until the next call. The error is io.EOF at the end.
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

// whole returns a line without the error that there is no next one.
func whole(line []byte, err error) ([]byte, error) {
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return line, err
}

// cutter copies a line without the ends of its long fields.
type cutter struct {
	out   []byte
	field int // the number of the current field, from 0
	size  int // its bytes so far
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
