package pluginlog

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"
)

// followEvery is the interval between two checks of a followed log for new lines.
const followEvery = 250 * time.Millisecond

// follow returns the last n lines of a log file. It also returns a reader for the lines that the
// plugin writes after this call.
func follow(log Log, n int, scrub Scrub) (last []string, rest Reader, err error) {
	size := logSize(log.Path())
	last, err = log.Tail(n, scrub)
	return last, func(ctx context.Context, tell func(lines []string) error) error {
		return followFile(ctx, log, size, scrub, tell)
	}, err
}

// followFile calls tell for each line that is appended to a log file after the given offset.
func followFile(ctx context.Context, log Log, from int64, scrub Scrub, tell func(lines []string) error) error {
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}

		log.Freshen(0)
		lines, next, err := since(log.Path(), from, scrub)
		if err != nil {
			return err
		}
		if err := tell(lines); err != nil {
			return err
		}

		from = next
	}
}

// since returns the complete lines of a log file after an offset, and the offset of the next line.
// If the file has become shorter, it was rotated, so since reads it from its start.
func since(path string, from int64, scrub Scrub) ([]string, int64, error) {
	size := logSize(path)
	if size < from {
		from = 0
	}

	if size == from {
		return nil, from, nil
	}

	f, err := os.Open(path)
	if err != nil {
		return nil, from, nil // the log is being rotated, so try again at the next check
	}
	defer f.Close() //nolint:errcheck // the file was only read

	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return nil, from, err
	}

	var lines []string
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return lines, from, nil
		}
		if err != nil {
			return lines, from, err
		}

		from += int64(len(line))
		lines = append(lines, clean(strings.TrimSuffix(line, "\n"), scrub))
	}
}

// logSize returns a log's size in bytes, or 0 if there is no log.
func logSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
