package event

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Filter selects events. Its zero value selects all events.
type Filter struct {
	Since  time.Time
	Volume string
	Types  []volume.EventType // empty means all types
	N      int                // only the last N events; 0 means all events
}

// Fits reports whether the filter selects the event. It does not count, so it ignores N.
func (f Filter) Fits(e Event) bool {
	return (f.Volume == "" || e.Volume == f.Volume) && (len(f.Types) == 0 || slices.Contains(f.Types, e.Type)) && !e.Time.Before(f.Since)
}

// maxLine is the maximum length of a line, in bytes. Every event is shorter.
const maxLine = 64 << 10

// eachLine calls the function do for each line of a file until do fails. It skips each line that is
// longer than maxLine. Such a line is not an event. It can appear at the end of a file after a
// power loss.
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
