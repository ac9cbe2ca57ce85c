// Package jobs runs work that can take longer than the call that requested the work. It also
// decides which calls may use the same object at the same time.
package jobs

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
)

const (
	// Patience is the time that a call waits for its copy. After this time, the call returns
	// ABORTED with the progress of the copy.
	Patience = 20 * time.Second
	// progressEvery is the interval between log messages about a running copy.
	progressEvery = 5 * time.Second
	// failureKept is the time for which the runner keeps the error of a failed copy if no caller
	// was waiting. The next call with the same name receives the error.
	failureKept = 10 * time.Minute
)

// job is work that may take longer than the call that started it.
type job struct {
	key string // such as "snapshot/NAME"
	// the arguments of the request; they reveal a different request with the same name
	want   string
	what   string // a description of the work for error messages
	prog   Progress
	cancel context.CancelFunc
	left   atomic.Bool // a caller has stopped waiting before the end of the job
	done   chan struct{}
	err    error // valid after done is closed
	ended  time.Time
}

func (j *job) pending() error {
	return csierr.Errorf(codes.Aborted, "%s is still being made, copied: %s; ask again for the same", j.what, &j.prog)
}

// Runner runs jobs. It also keeps each failed job until a caller has received the error.
type Runner struct {
	Log      hclog.Logger
	Patience time.Duration

	mu     sync.Mutex
	byKey  map[string]*job
	closed bool
	wg     sync.WaitGroup
}

// Do runs work and waits until it ends. If work with the same key is already running, Do joins it.
// The wait ends after the patience of the runner, or after nine tenths of the time that the caller
// has left, so that the answer still arrives. If the work takes longer, it continues, and Do
// returns ABORTED with the progress.
func (s *Runner) Do(ctx context.Context, key, want, what string, work func(context.Context, *Progress) error) error {
	j, err := s.join(key, want, what, work)
	if err != nil {
		return err
	}

	wait := s.Patience
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)*9/10)
	}

	timer := time.NewTimer(wait)
	defer timer.Stop()

	select {
	case <-j.done:
		s.forget(j)
		return j.err
	case <-timer.C:
		j.left.Store(true)
		return j.pending()
	case <-ctx.Done():
		j.left.Store(true)
		return ctx.Err()
	}
}

func (s *Runner) join(key, want, what string, work func(context.Context, *Progress) error) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.closed {
		return nil, csierr.Errorf(codes.Unavailable, "the driver is stopping")
	}

	if j := s.byKey[key]; j != nil && (j.ended.IsZero() || time.Since(j.ended) < failureKept) {
		if j.want == want {
			return j, nil
		}
		if j.ended.IsZero() {
			return nil, csierr.Errorf(codes.Aborted, "%s is being made for another request, with other arguments; copied: %s", j.what, &j.prog)
		}
	}

	for key, old := range s.byKey {
		if !old.ended.IsZero() && time.Since(old.ended) >= failureKept {
			delete(s.byKey, key) // no call has asked for the result in time
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	j := &job{key: key, want: want, what: what, cancel: cancel, done: make(chan struct{})}
	if s.byKey == nil {
		s.byKey = map[string]*job{}
	}
	s.byKey[key] = j
	s.wg.Go(func() { s.run(ctx, j, work) })
	return j, nil
}

func (s *Runner) run(ctx context.Context, j *job, work func(context.Context, *Progress) error) {
	defer j.cancel()

	tell, quiet := context.WithCancel(ctx)
	s.wg.Go(func() { s.report(tell, j) })
	err := s.guard(ctx, j, work)
	quiet()
	if err != nil && j.left.Load() {
		s.Log.Warn("cannot finish a copy", "what", j.what, "error", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	j.err, j.ended = err, time.Now()
	if err == nil {
		delete(s.byKey, j.key)
	}

	close(j.done)
}

func (s *Runner) guard(ctx context.Context, j *job, work func(context.Context, *Progress) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error("a copy panicked", "what", j.what, "panic", r, "stack", string(debug.Stack()))
			err = csierr.Internalf("%s: the copy panicked: %v", j.what, r)
		}
	}()

	err = work(ctx, &j.prog)
	if errors.Is(err, context.Canceled) {
		err = csierr.Errorf(codes.Unavailable, "%s: the driver was told to stop after %s; ask again", j.what, &j.prog)
	}

	return err
}

func (s *Runner) report(ctx context.Context, j *job) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()

	for {
		select {
		case <-tick.C:
			s.Log.Info("copying", "what", j.what, "progress", j.prog.String())
		case <-ctx.Done():
			return
		}
	}
}

// forget removes a job after a caller has received its result.
func (s *Runner) forget(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[j.key] == j {
		delete(s.byKey, j.key)
	}
}

// Running returns ABORTED if a job with this key is running.
func (s *Runner) Running(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.byKey[key]; j != nil && j.ended.IsZero() {
		return j.pending()
	}
	return nil
}

// Cancel stops all jobs and prevents new ones from starting.
func (s *Runner) Cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, j := range s.byKey {
		j.cancel()
	}
}

// Wait waits until all jobs have ended.
func (s *Runner) Wait() { s.wg.Wait() }
