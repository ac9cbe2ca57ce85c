package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// followEvery is how often a followed log is checked for new lines.
const followEvery = 250 * time.Millisecond

// FollowLog writes the last n lines of a plugin's log. With follow, it also writes every new line
// until ctx ends or write fails. If there are several parts, each line begins with the part's name.
// Secrets that the plugin was given are removed. The errors are those of LogPath.
func (s *Supervisor) FollowLog(ctx context.Context, id string, n int, follow bool, write func([]byte) error, only ...Only) error {
	parts, err := s.logged(id, only)
	if err != nil {
		return err
	}

	freshen(parts)
	if !follow {
		lines, err := tails(parts, n)
		return errors.Join(err, write(joined(lines)))
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var journals sync.WaitGroup
	defer journals.Wait()
	defer cancel() // runs before Wait

	fresh, failed := make(chan []string), make(chan error, len(parts))
	size := map[*plugin]int64{}
	for _, p := range parts {
		if unit := p.unit(); unit != "" {
			journals.Go(func() {
				failed <- followJournal(ctx, unit, n, func(line string) error {
					select {
					case fresh <- p.label(cleaned([]string{line}, p.hide())):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			})

			continue
		}

		size[p] = logSize(p.paths().log)
		lines, err := p.lastLines(n)
		if err = errors.Join(err, write(joined(p.label(lines)))); err != nil {
			return err
		}
	}

	return followFiles(ctx, size, fresh, failed, write)
}

// followFiles writes the lines that are added to the logs beyond the given sizes, and the lines
// from fresh. It ends when ctx ends or something fails.
func followFiles(ctx context.Context, size map[*plugin]int64, fresh <-chan []string, failed <-chan error, write func([]byte) error) error {
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		select {
		case lines := <-fresh:
			if err := write(joined(lines)); err != nil {
				return err
			}

		case err := <-failed:
			return err
		case <-t.C:
			for p := range size {
				p.logs.freshen(0)
				lines, next, err := since(p.paths().log, size[p], p.hide())
				if size[p] = next; err != nil {
					return err
				}
				if err := write(joined(p.label(lines))); err != nil {
					return err
				}
			}

		case <-ctx.Done():
			return nil
		}
	}
}

// since returns the complete lines of a log beyond an offset, and the offset after them. A log that
// became shorter was rotated, and is read from its start.
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
		return nil, from, nil // it is being rotated; the next check finds it
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
		lines = append(lines, clean(strings.TrimSuffix(line, "\n"), scrub))
	}
}

// logSize returns a log's size in bytes, 0 if there is none.
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
