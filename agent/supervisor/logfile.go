package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode"
)

const (
	// maxLog is the size, in bytes, above which a plugin's log is rotated.
	maxLog = 8 << 20
	// tailBytes is how many bytes at the end of a log are searched for its last lines.
	tailBytes = 256 << 10
	// maxLine is how many bytes of one line are shown.
	maxLine = 4 << 10
)

// openLog opens a plugin's log for appending. The plugin itself holds the file, so that the plugin
// can outlive the agent.
func openLog(path string) (*os.File, error) {
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

// trimLog rotates the log of a running plugin, which keeps its file open. It copies the content to
// ".1" and truncates the file. That is safe because the plugin appends. A line written between the
// two steps is lost.
func trimLog(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= maxLog {
		return nil // there is no log, or it is not too long
	}

	from, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot rotate the plugin's log: %w", err)
	}
	defer from.Close() //nolint:errcheck // it was only read

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

// tail returns the last n lines of a log, without secrets and without characters that control a
// terminal. A log that does not exist has no lines.
func tail(path string, n int, scrub func(string) string) ([]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || n <= 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugin's log: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read

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
		// The first line is incomplete: drop it, if there is another.
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

// printable removes control characters and cuts a line that is too long.
func printable(line string) string {
	if len(line) > maxLine {
		line = line[:maxLine] + "…"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		default:
			return -1
		}
	}, strings.ToValidUTF8(line, "\uFFFD"))
}
