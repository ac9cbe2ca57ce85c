package event

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/volagent/volagent/volmgr/untrusted"
)

// Filter selects events. Its zero value selects all events.
type Filter struct {
	Since  time.Time
	Volume string
	N      int // only the last N events; 0 means all events
}

func (f Filter) fits(e Event) bool {
	return (f.Volume == "" || e.Volume == f.Volume) && !e.Time.Before(f.Since)
}

// maxLine is the maximum length of a line, in bytes. Every event is shorter.
const maxLine = 64 << 10

// Read calls each for the selected events, oldest first. It returns the number of the last event at
// the time of the call, and reports no later events. It reads the files line by line, and only as
// far back as necessary. If ctx ends or each fails, Read stops and returns that error.
func (l *Log) Read(ctx context.Context, f Filter, each func(Event) error) (uint64, error) {
	recent, first, last := l.inMemory()
	matches := 0
	for _, e := range recent {
		if f.fits(e) {
			matches++
		}
	}

	enough := f.N > 0 && matches >= f.N || len(recent) > 0 && recent[0].Time.Before(f.Since)
	skip := 0
	if f.N > 0 {
		skip = max(0, matches-f.N)
	}

	if l.disk != nil && !enough && first > 1 {
		if err := l.history(ctx, f, first, f.N-matches, each); err != nil {
			return last, err
		}
	}

	for _, e := range recent {
		if !f.fits(e) {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		if err := each(e); err != nil {
			return last, err
		}
	}

	return last, nil
}

// inMemory returns the events that Read need not take from files: the last events, and all events
// that are not written yet. It also returns the numbers of the first and the last of them.
func (l *Log) inMemory() (recent []Event, first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	first, last = l.ring.first(), l.ring.seq
	for _, waiting := range [][]Event{l.inHand, l.pending} {
		for _, e := range waiting {
			if e.Seq < l.ring.first() {
				recent = append(recent, e)
			}
		}
	}

	if len(recent) > 0 {
		first = recent[0].Seq
	}

	return append(recent, l.ring.after(0)...), first, last
}

// history calls each for the events in the files with a number less than below. If the filter
// selects only the last N events, history first counts events from the end, to find the file where
// it must start.
func (l *Log) history(ctx context.Context, f Filter, below uint64, want int, each func(Event) error) error {
	names, err := files(l.disk.dir)
	if err != nil {
		return err
	}

	if !f.Since.IsZero() {
		day := f.Since.UTC().Format(time.DateOnly)
		for len(names) > 0 && dayOf(names[0]) < day {
			names = names[1:]
		}
	}

	skip := 0
	if f.N > 0 {
		found, from := 0, len(names)
		for from > 0 && found < want {
			from--
			if err := l.scan(ctx, names[from], f, below, func(Event) error { found++; return nil }); err != nil {
				return err
			}
		}

		names, skip = names[from:], max(0, found-want)
	}

	for _, name := range names {
		err := l.scan(ctx, name, f, below, func(e Event) error {
			if skip--; skip >= 0 {
				return nil
			}
			return each(e)
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// scan calls each for the events of one file. If the file has been deleted meanwhile, because it
// became too old, scan reports no events.
func (l *Log) scan(ctx context.Context, name string, f Filter, below uint64, each func(Event) error) error {
	file, err := untrusted.Open(filepath.Join(l.disk.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read events: %w", err)
	}
	defer file.Close() //nolint:errcheck // the file was only read

	err = eachLine(file, func(raw []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}

		l, ok := parse(raw)
		if e := l.event(); ok && e.Seq < below && f.fits(e) {
			return each(e)
		}

		return nil
	})
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return fmt.Errorf("cannot read events: %w", err)
	}

	return err
}

// eachLine calls do for each line of a file until do fails. It skips each line that is longer than
// maxLine. Such a line is not an event. It can appear at the end of a file after a power loss.
func eachLine(file io.Reader, do func(raw []byte) error) error {
	r := bufio.NewReaderSize(file, maxLine)
	for long := false; ; {
		raw, err := r.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		if !full && !long {
			if err := do(raw); err != nil {
				return err
			}
		}

		if long = full; err != nil && !full {
			return notEOF(err)
		}
	}
}

func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
