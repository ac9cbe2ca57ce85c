package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"
)

// followEvery is how often a followed log is looked at for more.
const followEvery = 250 * time.Millisecond

// FollowLog writes the last n lines of a plugin's log and, with follow, every
// line that is added until ctx ends or write fails. Secrets that this agent has
// given the plugin are left out. Its errors are LogPath's.
func (s *Supervisor) FollowLog(ctx context.Context, id string, n int, follow bool, write func([]byte) error) error {
	path, err := s.LogPath(id)
	if err != nil {
		return err
	}
	size := logSize(path)
	lines, err := s.LogTail(id, n)
	if err != nil {
		return err
	}
	if err := write(joined(lines)); err != nil || !follow {
		return err
	}
	p := s.find(id)
	if p == nil {
		return unknown(id)
	}
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			var fresh []string
			if fresh, size, err = since(path, size, p.hide()); err != nil {
				return err
			}
			if err := write(joined(fresh)); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// since returns the whole lines that a log has beyond an offset, and the offset
// after them. A log that became shorter was rotated and is read from its start.
func since(path string, from int64, scrub func(string) string) ([]string, int64, error) {
	size := logSize(path)
	if size < from {
		from = 0
	}
	if size == from {
		return nil, from, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, from, nil // it is being rotated; the next look finds it
	}
	defer f.Close() //nolint:errcheck // it was only read
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
		lines = append(lines, printable(scrub(strings.TrimSuffix(line, "\n"))))
	}
}

// logSize is a log's size in bytes, 0 if there is none.
func logSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func joined(lines []string) []byte {
	if len(lines) == 0 {
		return nil
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}
