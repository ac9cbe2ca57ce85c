package container

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// Logs writes to w what a container wrote after a moment, a line at a time and
// without the runtime's timestamps, and returns when the last of it was written.
// That is since if there is nothing new. A moment is never given twice, so the
// next call goes on from there.
func (r Runtime) Logs(ctx context.Context, id string, since time.Time, w io.Writer) (time.Time, error) {
	args := []string{"logs", "--timestamps"}
	if !since.IsZero() {
		args = append(args, "--since", since.UTC().Format(time.RFC3339Nano))
	}
	s := &stripper{to: w, since: since, last: since}
	_, err := r.run(ctx, command{args: append(args, id), limit: quick, out: s})
	if err != nil && s.words != "" && s.err == nil && ctx.Err() == nil {
		err = r.failed("logs", s.words, err)
	}
	if err == nil {
		err = s.end()
	}
	return s.last, errors.Join(err, s.err)
}

// maxStamp is the length of the longest timestamp.
const maxStamp = len("2006-01-02T15:04:05.000000000+00:00")

// stripper takes the timestamp off each line, and drops lines that are no newer
// than since: one of the runtimes repeats the last line, the other does not. What
// begins with no timestamp is the runtime's own word. It keeps no line, since one
// may be endless.
type stripper struct {
	to          io.Writer
	since, last time.Time
	words       string // of the runtime

	head   []byte    // of a line, until its timestamp is complete
	at     time.Time // the line's
	inLine bool      // the timestamp is over
	pass   bool      // the line is to be written
	word   bool      // the line is the runtime's
	err    error
}

// Write implements io.Writer.
func (s *stripper) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && s.err == nil; {
		if !s.inLine {
			rest = s.stamp(rest)
			continue
		}
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		if whole {
			line = rest[:len(line)+1]
		}
		rest = after
		switch {
		case s.pass:
			_, s.err = s.to.Write(line)
		case s.word:
			s.words += string(line[:min(len(line), maxReason-min(len(s.words), maxReason))])
		}
		if whole {
			s.over()
		}
	}
	return len(p), s.err
}

// stamp reads on in a line's timestamp and returns what follows.
func (s *stripper) stamp(p []byte) []byte {
	for i, c := range p {
		if c != ' ' && c != '\n' && len(s.head) < maxStamp {
			s.head = append(s.head, c)
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, string(s.head))
		s.at, s.inLine, s.pass = at, true, err == nil && at.After(s.since)
		rest := p[i:]
		if s.word = err != nil; s.word {
			s.words = string(s.head)
		} else if c == ' ' {
			rest = rest[1:]
		}
		s.head = s.head[:0]
		return rest
	}
	return nil
}

// over notes that a line is complete. One that is not, because the command was
// broken off, comes again.
func (s *stripper) over() {
	s.inLine = false
	if s.pass && s.err == nil && s.at.After(s.last) {
		s.last = s.at
	}
}

// end ends a line that the container has not ended.
func (s *stripper) end() error {
	if s.err == nil && s.inLine && s.pass {
		_, s.err = s.to.Write([]byte{'\n'})
		s.over()
	}
	return s.err
}
