package supervisor

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
	// logEvery is how often at most a container's log is copied.
	logEvery = time.Second
	// logPatience is how long somebody who wants to see it waits for that. A
	// runtime that hangs must not hang a status.
	logPatience = time.Second
)

// logCopier brings what a container writes into the plugin's log.
//
// The runtime keeps it, up to a limit that is not below ours, whether an agent runs
// or not; so it is enough to fetch what is new when somebody looks, and before the
// container is removed, and an idle plugin costs nothing. A child that follows the
// log would have to be kept alive, cost tens of megabytes for each plugin, and
// still leave to the next agent what came while there was none. Up to where the
// log was copied stands in a file beside it: lost with it are at most lines that
// come twice.
type logCopier struct {
	paths paths
	turn  chan struct{} // holds one token for who copies

	mu    sync.Mutex
	rt    container.Runtime
	id    string    // of the container; empty if there is none
	until time.Time // is copied
	began time.Time // the last time
}

func (l *logCopier) init(p paths) { l.paths, l.turn = p, make(chan struct{}, 1) }

// from says which container's log is copied from now on.
func (l *logCopier) from(rt container.Runtime, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != id {
		l.rt, l.id, l.until, l.began = rt, id, l.mark(id), time.Time{}
	}
}

// freshen copies what is new, unless that was just done or is being done. It
// waits no longer than it is told.
func (l *logCopier) freshen(wait time.Duration) {
	l.mu.Lock()
	due := l.id != "" && time.Since(l.began) >= logEvery
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
		_ = l.copy(context.Background()) // the command is bounded; what is not copied now is later
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

// last copies what is left of a container that has ended, and forgets it.
func (l *logCopier) last(ctx context.Context) error {
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

// copy copies what is new; the caller has the turn.
func (l *logCopier) copy(ctx context.Context) error {
	l.mu.Lock()
	rt, id, since := l.rt, l.id, l.until
	l.mu.Unlock()
	if id == "" {
		return nil
	}
	f, err := openLog(l.paths.log)
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

func (l *logCopier) markFile() string { return l.paths.log + ".until" }

// mark is up to where the log of a container was copied.
func (l *logCopier) mark(id string) time.Time {
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
