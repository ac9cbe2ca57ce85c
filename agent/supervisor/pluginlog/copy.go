package pluginlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/container"
)

const (
	// copyEvery is the minimum time between two copies of a container's output.
	copyEvery = time.Second
	// Patience limits how long a reader of the log waits until new output is copied, so that a hung
	// runtime does not block a status request.
	Patience = time.Second
)

// Copy is a log file to which the agent copies the output of a container.
//
// The runtime stores the output even while no agent runs. It keeps at least as much output as the
// agent. The agent therefore copies new output only when a user reads the log, and before it
// removes the container. So an idle plugin costs nothing.
//
// The alternative would be a child process that follows the output. Such a process costs tens of
// megabytes for each plugin, and the agent would have to monitor it. It would also miss the output
// while no agent runs, so the next agent would still have to copy this output.
//
// A file beside the log stores up to which time the output was copied. If this file is lost, a few
// lines may appear twice.
type Copy struct {
	File

	turn chan struct{} // a semaphore; the goroutine that holds it copies the output

	mu    sync.Mutex
	rt    container.Runtime
	id    string    // id of the container; empty if there is none
	until time.Time // the time up to which the output was copied
	began time.Time // when the last copy was started
}

// NewCopy returns a Copy whose log file is at path.
func NewCopy(path string) *Copy { return &Copy{File: File(path), turn: make(chan struct{}, 1)} }

// Follow implements Log.
func (l *Copy) Follow(n int, scrub Scrub) (last []string, rest Reader, err error) {
	return follow(l, n, scrub)
}

// From selects the container whose output is copied.
func (l *Copy) From(rt container.Runtime, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != id {
		l.rt, l.id, l.until, l.began = rt, id, l.mark(id), time.Time{}
	}
}

// Freshen implements Log. It copies new output, unless another goroutine is copying or has just
// copied the output.
func (l *Copy) Freshen(wait time.Duration) {
	l.mu.Lock()
	due := l.id != "" && time.Since(l.began) >= copyEvery
	if due {
		select {
		case l.turn <- struct{}{}:
			l.began = time.Now()
		default:
			due = false
		}
	}

	l.mu.Unlock()
	if !due {
		return
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-l.turn }()
		// ignore errors, because a later copy gets the missing output; the command has a time limit
		_ = l.copy(context.Background())
	}()

	if wait <= 0 {
		return
	}

	timer := time.NewTimer(wait)
	defer timer.Stop()

	select {
	case <-done:
	case <-timer.C:
	}
}

// Last copies the remaining output of a container that has ended. After that, the log belongs to no
// container.
func (l *Copy) Last(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()

	err := l.copy(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()

	l.id = ""
	return err
}

// copy copies new output. The caller holds the semaphore turn.
func (l *Copy) copy(ctx context.Context) error {
	l.mu.Lock()
	rt, id, since := l.rt, l.id, l.until
	l.mu.Unlock()
	if id == "" {
		return nil
	}

	f, err := Open(l.Path())
	if err != nil {
		return err
	}

	until, err := rt.Logs(ctx, id, since, f)
	err = errors.Join(err, f.Close())
	if until.After(since) {
		l.mu.Lock()
		if l.id == id {
			l.until = until
		}

		l.mu.Unlock()
		err = errors.Join(err, os.WriteFile(l.markFile(), fmt.Appendf(nil, "%s %s\n", id, until.Format(time.RFC3339Nano)), 0o600))
	}

	return err
}

func (l *Copy) markFile() string { return l.Path() + ".until" }

// mark returns up to which time the output of a container was copied.
func (l *Copy) mark(id string) time.Time {
	text, err := os.ReadFile(l.markFile())
	if err != nil {
		return time.Time{}
	}

	name, stamp, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if name != id || err != nil {
		return time.Time{}
	}

	return at
}
