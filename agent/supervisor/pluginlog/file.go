package pluginlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

const (
	// maxLog is the size in bytes at which the agent rotates a plugin's log.
	maxLog = 8 << 20
	// tailBytes is the number of bytes at the end of a log in which the agent searches for the last
	// lines.
	tailBytes = 256 << 10
)

// Open opens a plugin's log for appending. The plugin gets the open file, so it can write its
// output even while no agent runs.
func Open(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("cannot rotate the plugin's log: %w", err)
		}
	}

	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the plugin's log: %w", err)
	}

	return f, nil
}

// Trim rotates the log of a running plugin, which keeps the file open. It copies the content to a
// file with the suffix ".1" and then truncates the log. The plugin can continue to write, because
// it appends to the file. A line that the plugin writes between the copy and the truncation is
// lost.
func Trim(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= maxLog {
		return nil // there is no log, or it is not long enough
	}

	from, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot rotate the plugin's log: %w", err)
	}
	defer from.Close() //nolint:errcheck // the file was only read

	to, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot rotate the plugin's log: %w", err)
	}

	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("cannot rotate the plugin's log: %w", err)
	}
	if err := os.Truncate(path, 0); err != nil {
		return fmt.Errorf("cannot rotate the plugin's log: %w", err)
	}

	return nil
}

// File is a log in a file. Its value is the path of the file.
type File string

// Path implements Log.
func (f File) Path() string { return string(f) }

// Freshen implements Log. It does nothing, because the plugin itself writes the file.
func (f File) Freshen(time.Duration) {}

// Tail implements Log.
func (f File) Tail(n int, scrub Scrub) ([]string, error) { return tail(string(f), n, scrub) }

// Follow implements Log.
func (f File) Follow(n int, scrub Scrub) (last []string, rest Reader, err error) {
	return follow(f, n, scrub)
}

// tail returns the last n lines of a file.
func tail(path string, n int, scrub Scrub) ([]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || n <= 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugin's log: %w", err)
	}
	defer f.Close() //nolint:errcheck // the file was only read

	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugin's log: %w", err)
	}

	from := max(0, end-tailBytes)
	data := make([]byte, end-from)
	if _, err := f.ReadAt(data, from); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the plugin's log: %w", err)
	}
	if from > 0 {
		// The text probably begins in the middle of a line. Drop this line if there is another one.
		if _, rest, more := bytes.Cut(data, []byte{'\n'}); more {
			data = rest
		}
	}

	text := strings.TrimRight(string(data), "\n")
	if text == "" {
		return nil, nil
	}

	lines := strings.Split(text, "\n")
	return cleaned(lines[max(0, len(lines)-n):], scrub), nil
}
