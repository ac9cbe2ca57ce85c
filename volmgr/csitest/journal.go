package csitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"
)

// Journal is the content of a plugin's journal file, across all restarts of the plugin. Each line
// of the file is a JSON object. Its event is "open" for a start of the plugin, "call" for the
// arrival of a call, "end" for its answer, or "violation". The plugin appends each line with a
// single write. A line therefore survives the death of the plugin and of its caller, but not a
// crash of the machine.
type Journal struct {
	Calls      Calls
	Violations []Violation
	Starts     int // number of times that the plugin was started
}

// These constants are the values of the event in a line of the journal.
const (
	eventOpen      = "open"
	eventCall      = "call"
	eventEnd       = "end"
	eventViolation = "violation"
)

// entry is one line of the journal.
type entry struct {
	Event     string     `json:"event"`
	Time      time.Time  `json:"time"`
	Plugin    int        `json:"plugin,omitempty"`
	Call      *Call      `json:"call,omitempty"`
	Seq       int64      `json:"seq,omitempty"` // number of the call that ended
	Result    *Result    `json:"result,omitempty"`
	Violation *Violation `json:"violation,omitempty"`
}

// ReadJournal returns the calls in a journal. The plugin may write to the journal at the same time.
// If the file is missing, there are no calls.
func ReadJournal(path string) (Calls, error) {
	j, err := LoadJournal(path)
	return j.Calls, err
}

// LoadJournal is like ReadJournal, but returns all events of the journal.
func LoadJournal(path string) (Journal, error) {
	var (
		j  Journal
		at = map[int64]int{}
	)
	err := eachEntry(path, func(e entry) {
		switch e.Event {
		case eventOpen:
			j.Starts++
		case eventCall:
			at[e.Call.Seq] = len(j.Calls)
			j.Calls = append(j.Calls, *e.Call)
		case eventEnd:
			if i, ok := at[e.Seq]; ok {
				j.Calls[i].Result = *e.Result
			}
		case eventViolation:
			j.Violations = append(j.Violations, *e.Violation)
		}
	})

	return j, err
}

// ViolationsSince returns the violations in a journal after the given byte offset. It also returns
// the offset for the next call. With it, a test can watch a long journal.
func ViolationsSince(path string, offset int64) (broken []Violation, next int64, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, offset, nil
	}
	if err != nil {
		return nil, offset, fmt.Errorf("cannot read the journal: %w", err)
	}

	data, err := io.ReadAll(io.NewSectionReader(f, offset, math.MaxInt64-offset))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, offset, fmt.Errorf("cannot read the journal: %w", err)
	}

	data = data[:bytes.LastIndexByte(data, '\n')+1] // the plugin may not have finished writing the last line
	for line := range bytes.Lines(data) {
		var e entry
		if !bytes.Contains(line, []byte(`"`+eventViolation+`"`)) {
			continue
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, offset, fmt.Errorf("cannot read the journal %q: %w", path, err)
		}
		if e.Violation != nil {
			broken = append(broken, *e.Violation)
		}
	}

	return broken, offset + int64(len(data)), nil
}

// AwaitCalls reads a journal repeatedly until done returns true for its calls. It then returns the
// calls. If ctx ends first, the error contains the calls.
func AwaitCalls(ctx context.Context, path string, done func(Calls) bool) (Calls, error) {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()

	for {
		calls, err := ReadJournal(path)
		if err != nil || done(calls) {
			return calls, err
		}

		select {
		case <-again.C:
		case <-ctx.Done():
			return calls, fmt.Errorf("the expected calls did not arrive: %w; the journal contains:\n%s", ctx.Err(), calls)
		}
	}
}

func eachEntry(path string, do func(entry)) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the journal: %w", err)
	}

	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			return nil // at the end of the file or at an incomplete line
		}

		data = rest
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("cannot read the journal %q: line %d: %w", path, n, err)
		}
		if (e.Event == eventCall && e.Call == nil) || (e.Event == eventEnd && e.Result == nil) || (e.Event == eventViolation && e.Violation == nil) {
			return fmt.Errorf("cannot read the journal %q: line %d has no %s", path, n, e.Event)
		}

		do(e)
	}
}

// now returns the current time without the reading of the monotonic clock, which a journal cannot
// store.
func now() time.Time { return time.Now().Round(0) }

// openJournal opens a journal for appending.
func openJournal(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the journal: %w", err)
	}
	return f, nil
}

func writeEntry(f *os.File, e entry) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}

	return nil
}
