package container

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// Logs copies the output of a container to w, without the runtime's timestamps. It copies only
// lines that are newer than the time since. It returns the time of the last line that it copied, or
// since if there is no new line. No two lines have the same time, so the next call can continue
// from the returned time.
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

// stripper removes the timestamp from each line. It drops lines that are not newer than since,
// because one of the runtimes repeats the last line. A line without a timestamp is a message of the
// runtime itself. stripper does not buffer whole lines, because a line may have no end.
type stripper struct {
	to          io.Writer
	since, last time.Time
	words       string // messages of the runtime

	head   []byte    // the bytes of the current line's timestamp so far
	at     time.Time // the timestamp of the current line
	inLine bool      // the timestamp of the current line is complete
	pass   bool      // the current line is written to the output
	word   bool      // the current line is a message of the runtime
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

// stamp reads the next bytes of a line's timestamp, and returns the remaining bytes of p.
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

// over records that a line has ended. If a command was interrupted in the middle of a line, over is
// not called, so the next call of Logs reads this line again.
func (s *stripper) over() {
	s.inLine = false
	if s.pass && s.err == nil && s.at.After(s.last) {
		s.last = s.at
	}
}

// end adds a newline to the last line if the container's output does not end with one.
func (s *stripper) end() error {
	if s.err == nil && s.inLine && s.pass {
		_, s.err = s.to.Write([]byte{'\n'})
		s.over()
	}
	return s.err
}
