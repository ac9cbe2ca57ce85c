package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// keepFor, maxTotal and parts limit the age, the number and the size of the files.
const (
	keepFor  = 7 * 24 * time.Hour
	maxTotal = 64 << 20 // bytes of all files; the oldest files are deleted first
	parts    = 8        // a file that exceeds maxTotal/parts is followed by another file for the same day
)

// errSlow is the error for events that are lost because the disk is too slow.
var errSlow = errors.New("the disk is too slow")

// disk writes events to files, with one JSON object per line. It does not sync the files: the loss
// of the last events in a power failure is acceptable. Only one goroutine uses it.
type disk struct {
	dir  string
	keep time.Duration // how long to keep an event at least
	max  int64         // maximum number of bytes in all files
	from string        // the oldest day that the last prune kept
	f    *os.File      // the current file; nil before the first event
	name string
	size int64
	torn bool // the last write was incomplete
}

// line is an event in the format of the files. Its JSON names are the names in the API.
type line struct {
	Time    time.Time        `json:"time"`
	Seq     uint64           `json:"seq"`
	Volume  string           `json:"volume,omitempty"`
	Alloc   string           `json:"alloc,omitempty"`
	Plugin  string           `json:"plugin,omitempty"`
	Part    string           `json:"part,omitempty"`
	Type    volume.EventType `json:"type"`
	Step    string           `json:"step,omitempty"`
	Message string           `json:"message"`
}

func (e Event) line() line {
	return line{e.Time, e.Seq, e.Volume, e.Alloc, e.Plugin, e.Part, e.Type, e.Step, e.Message}
}

func (l line) event() Event {
	e := volume.Event{Type: l.Type, Volume: l.Volume, Alloc: l.Alloc, Plugin: l.Plugin, Part: l.Part, Step: l.Step, Message: l.Message}
	return Event{Event: e, Time: l.Time, Seq: l.Seq}
}

// openDisk creates the directory if necessary. It returns the number of the last event in the
// directory.
func openDisk(dir string, keep time.Duration, most int64, now time.Time) (d *disk, last uint64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, 0, fmt.Errorf("cannot create the event directory: %w", err)
	}

	d = &disk{dir: dir, keep: keep, max: most}
	names, err := files(dir)
	if err != nil {
		return nil, 0, err
	}

	for i := len(names) - 1; i >= 0; i-- {
		if last, err = lastSeq(filepath.Join(dir, names[i])); last > 0 || err != nil {
			break
		}
	}

	// The numbers continue even if all files are too old.
	return d, last, errors.Join(err, d.prune(now))
}

// files returns the names of the event files in a directory, with the oldest first.
func files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // ReadDir sorts the entries by name
	if err != nil {
		return nil, fmt.Errorf("cannot list the event files: %w", err)
	}

	var names []string
	for _, e := range entries {
		var n int
		if day, part, ok := strings.Cut(strings.TrimSuffix(e.Name(), ".jsonl"), "."); ok && e.Type().IsRegular() {
			if _, err := time.Parse(time.DateOnly, day); err != nil {
				continue
			}

			if _, err := fmt.Sscanf(part, "%04d", &n); err == nil && e.Name() == fileName(day, n) {
				names = append(names, e.Name())
			}
		}
	}

	return names, nil
}

// fileName returns the name of the n-th file of a day. The order of the names is the order of the
// events.
func fileName(day string, n int) string { return fmt.Sprintf("%s.%04d.jsonl", day, n) }

// dayOf returns the day on which a file was started, from the name of the file.
func dayOf(name string) string { return name[:len(time.DateOnly)] }

// lastSeq returns the number of the last event in a file. It returns 0 if the file contains no
// event.
func lastSeq(path string) (last uint64, err error) {
	const tail = 64 << 10 // longer than any line
	f, err := untrusted.Open(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read the event files: %w", err)
	}
	defer f.Close() //nolint:errcheck // the file was only read

	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("cannot read the event files: %w", err)
	}

	data := make([]byte, min(end, tail))
	if _, err := f.ReadAt(data, end-int64(len(data))); err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("cannot read the event files: %w", err)
	}

	for raw := range bytes.Lines(data) {
		if l, ok := parse(raw); ok {
			last = max(last, l.Seq)
		}
	}

	if last > 0 || end <= tail {
		return last, nil
	}

	// The end of the file contains no events, which can happen after a power loss. Read the whole
	// file to find the last number, because no number may be used twice.
	_, err = f.Seek(0, io.SeekStart)
	if err == nil {
		err = eachLine(f, func(raw []byte) error {
			if l, ok := parse(raw); ok {
				last = max(last, l.Seq)
			}
			return nil
		})
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read the event files: %w", err)
	}

	return last, nil
}

// maxSeq is larger than any real event number.
const maxSeq = 1 << 62

// parse parses a line. It rejects a line that is incomplete after a crash or on a full disk.
func parse(raw []byte) (l line, ok bool) {
	return l, json.Unmarshal(raw, &l) == nil && l.Seq > 0 && l.Seq < maxSeq
}

// write appends events to the files.
func (d *disk) write(evs []Event) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)

	for _, e := range evs {
		day := e.Time.Format(time.DateOnly)
		another := d.f == nil || day > dayOf(d.name) || d.size+int64(buf.Len()) >= d.max/parts
		if another || d.oldest(e.Time) > d.from { // or a day has become too old
			if err := d.flush(&buf); err != nil {
				return err
			}
			if err := d.next(day, e.Time); err != nil {
				return err
			}
		}

		if err := enc.Encode(e.line()); err != nil {
			return fmt.Errorf("cannot encode an event: %w", err)
		}
	}

	return d.flush(&buf)
}

func (d *disk) flush(buf *bytes.Buffer) error {
	if buf.Len() == 0 {
		return nil
	}

	data := buf.Bytes()
	if d.torn {
		data = append([]byte{'\n'}, data...)
	}

	n, err := d.f.Write(data)
	d.size += int64(n)
	d.torn = err != nil && (n > 0 || d.torn)
	buf.Reset()
	if err != nil {
		return fmt.Errorf("cannot write events: %w", err)
	}

	return nil
}

// next opens the file for the events of a day. It continues the last file unless that file is full
// or from an earlier day. If the clock was set back, it also continues the last file, and does not
// reopen an older one.
func (d *disk) next(day string, now time.Time) error {
	if err := errors.Join(d.close(), d.prune(now)); err != nil {
		return err
	}

	names, err := files(d.dir)
	if err != nil {
		return err
	}

	name := fileName(day, 0)
	if len(names) > 0 && dayOf(names[len(names)-1]) >= day {
		name = names[len(names)-1]
		info, err := os.Stat(filepath.Join(d.dir, name))
		if err != nil {
			return fmt.Errorf("cannot open an event file: %w", err)
		}

		if info.Size() >= d.max/parts {
			var n int
			if _, err := fmt.Sscanf(name[len(day):], ".%04d", &n); err != nil {
				return fmt.Errorf("cannot parse the number of event file %s: %w", name, err)
			}
			name = fileName(dayOf(name), n+1)
		}
	}

	f, err := os.OpenFile(filepath.Join(d.dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open an event file: %w", err)
	}

	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("cannot open an event file: %w", err), f.Close())
	}

	d.f, d.name, d.size, d.torn = f, name, info.Size(), false
	last := []byte{'\n'}
	if _, err := f.ReadAt(last, info.Size()-1); err == nil {
		d.torn = last[0] != '\n'
	}

	return nil
}

// oldest returns the first day whose file may contain an event that is not too old.
func (d *disk) oldest(now time.Time) string {
	return now.UTC().Add(-d.keep).Format(time.DateOnly)
}

// prune deletes the files that are too old. If the total size is too large, it also deletes the
// oldest files.
func (d *disk) prune(now time.Time) error {
	names, err := files(d.dir)
	if err != nil {
		return err
	}

	oldest := d.oldest(now)
	var total int64
	for i := len(names) - 1; i >= 0; i-- {
		path := filepath.Join(d.dir, names[i])
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("cannot read the size of an event file: %w", err)
		}
		// Leave room for the current file, which grows.
		if total += info.Size(); dayOf(names[i]) >= oldest && total <= d.max-d.max/parts {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot delete an old event file: %w", err)
		}
	}

	d.from = oldest
	return nil
}

func (d *disk) close() error {
	if d.f == nil {
		return nil
	}

	err := d.f.Close()
	d.f = nil
	if err != nil {
		return fmt.Errorf("cannot close an event file: %w", err)
	}

	return nil
}
