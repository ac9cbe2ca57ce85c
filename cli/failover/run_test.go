package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// sham is a host with an agent and systemd for one attempt. The script changes it between two looks.
type sham struct {
	mu sync.Mutex

	now      time.Time
	node     api.Node
	nodeErr  error
	holds    []api.Hold
	move     *api.Move
	claim    *api.Claim
	claimErr error
	claims   error  // the result of a claim
	state    string // the output of systemctl show
	startErr error
	claimed  bool
	ran      []string
	said     []string
	looks    int
	script   func(s *sham)
}

func (s *sham) Node(context.Context) (*api.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &s.node, s.nodeErr
}

func (s *sham) AnyVolume(context.Context, string) (*api.Volume, []string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &api.Volume{Holds: s.holds, Move: s.move}, nil, nil
}

func (s *sham) Claim(context.Context, string, string) (*api.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim, s.claimErr
}

func (s *sham) run(_ context.Context, program string, args ...string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch args[0] {
	case "show":
		return s.state, nil
	case "start":
		s.ran = append(s.ran, "start")
		return "", s.startErr
	case "reset-failed":
		return "", errors.New("not loaded")
	}
	s.ran = append(s.ran, strings.Join(append([]string{program}, args...), " "))
	return "", nil
}

// attempt returns an attempt on the sham. Its sleeps last a millisecond, and let the script act. The attempt
// must end within a limited number of looks.
func (s *sham) attempt(t *testing.T, more ...string) *attempt {
	dir, tooLong := t.TempDir(), make(chan struct{})
	s.now, s.node.ID, s.state = time.Unix(1e9, 0), "h1", "ActiveState=active\n"
	s.claim = &api.Claim{Wanted: true}
	return &attempt{
		service: "web.service", volume: "db", prefer: more, delay: DefaultDelay,
		agent: s, host: Host{StateDir: dir, Run: s.run}, files: files{dir, "web.service"},
		claim: func(ctx context.Context) error {
			s.mu.Lock()
			err := s.claims
			s.claimed = err == nil
			s.mu.Unlock()
			if errors.Is(err, context.Canceled) {
				select { // the claim waits until it is withdrawn
				case <-ctx.Done():
				case <-tooLong:
				}
			}
			return err
		},
		say: func(text string) { s.said = append(s.said, text) },
		log: func(format string, args ...any) { s.said = append(s.said, fmt.Sprintf(format, args...)) },
		now: func() time.Time { s.mu.Lock(); defer s.mu.Unlock(); return s.now },
		sleep: func(ctx context.Context, d time.Duration) error {
			time.Sleep(time.Millisecond) // so that the other goroutine of the attempt gets its turn
			s.mu.Lock()
			defer s.mu.Unlock()
			for ctx.Err() == nil && s.claimed && len(s.ran) == 0 { // the service is being started
				s.mu.Unlock()
				time.Sleep(time.Millisecond)
				s.mu.Lock()
			}
			s.now = s.now.Add(d)
			if s.looks++; s.looks == 2000 {
				t.Errorf("the attempt does not end: ran %q, said %q", s.ran, s.said)
				close(tooLong)
			}
			if s.looks >= 2000 {
				return context.DeadlineExceeded
			}
			if s.script != nil {
				s.script(s)
			}
			return ctx.Err()
		},
	}
}

func (s *sham) expectRan(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.ran, want) {
		t.Errorf("ran %q, want %q; said %q", s.ran, want, s.said)
	}
}

const stopped = "systemctl stop -- web.service"

// TestAttemptEnds checks each reason for which a host stops the service and gives the volume up, and
// whether it lets other hosts go first afterwards.
func TestAttemptEnds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(s *sham, f files)
		waits  time.Duration
	}{
		{"the hold is lost", func(s *sham, _ files) { s.claimErr = &api.Error{Code: api.CodeNotFound} }, 0},
		{"the claim is being detached", func(s *sham, _ files) { s.claim = &api.Claim{} }, 0},
		{"paused", func(s *sham, f files) { _ = f.pause(s.now) }, 0},
		{"draining", func(s *sham, _ files) { s.node.Draining = true }, 0},
		{"the volume is moved to another host", func(s *sham, _ files) { s.move = &api.Move{From: "h1", To: "h2"} }, 0},
		{"the service is stopped", func(s *sham, _ files) { s.state = "ActiveState=inactive\n" }, yieldFor},
		{"the service fails", func(s *sham, _ files) { s.state = "ActiveState=failed\n" }, yieldFor},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &sham{}
			a := s.attempt(t)
			s.script = func(s *sham) {
				if s.looks == 5 {
					tt.change(s, a.files)
				}
			}
			if err := a.run(t.Context()); err != nil {
				t.Error(err)
			}
			s.expectRan(t, "start", stopped)
			r, err := a.files.read()
			if got := r.backOff(s.now, yieldFor); err != nil || got > tt.waits || got < tt.waits-10*time.Second {
				t.Errorf("the host waits %s, want at most %s: %v", got, tt.waits, err)
			}
		})
	}
}

// TestAttemptKeeps checks that the service continues to run while the agent or systemd does not answer.
func TestAttemptKeeps(t *testing.T) {
	s := &sham{}
	a := s.attempt(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.script = func(s *sham) {
		switch s.looks {
		case 5:
			gone := &api.Error{Code: api.CodeUnreachable, Message: "no agent answers"}
			s.claimErr, s.nodeErr, s.state = gone, gone, ""
		case 100:
			cancel()
		}
	}
	if err := a.run(ctx); err != nil || s.looks < 100 {
		t.Errorf("ended after %d looks: %v", s.looks, err)
	}
	s.expectRan(t, "start")
}

// TestAttemptFails checks that a failed start of the service, and a failed claim, count as failures.
// A claim that waits for another host does not.
func TestAttemptFails(t *testing.T) {
	s := &sham{startErr: errors.New("it has no program")}
	a := s.attempt(t)
	s.state = "ActiveState=failed\n"
	if err := a.run(t.Context()); err != nil {
		t.Error(err)
	}
	s.expectRan(t, "start", stopped)
	if r, _ := a.files.read(); r.Failures != 1 {
		t.Errorf("after a failed start: %+v", r)
	}

	s = &sham{claims: &api.Error{Code: api.CodeFailed, Message: "bad superblock"}}
	a = s.attempt(t)
	if err := a.run(t.Context()); err == nil {
		t.Error("the failed claim has no error")
	}
	s.expectRan(t)
	if r, _ := a.files.read(); r.Failures != 1 {
		t.Errorf("after a failed claim: %+v", r)
	}

	for _, code := range []api.Code{api.CodeTimeout, api.CodeRefused, api.CodePluginUnavailable, api.CodeUnreachable} {
		s = &sham{claims: &api.Error{Code: code, Message: "another host has it"}}
		a = s.attempt(t)
		s.script = func(s *sham) {
			if s.looks == 20 {
				s.claims, s.state = nil, "ActiveState=inactive\n"
			}
		}
		if err := a.run(t.Context()); err != nil {
			t.Errorf("%s: %v", code, err)
		}
		s.expectRan(t, "start", stopped)
		if r, _ := a.files.read(); r.Failures != 0 {
			t.Errorf("%s: %+v", code, r)
		}
	}
}

// TestAttemptHogs checks that a host that has the hold, and cannot mount the volume in time, counts this
// as a failure. Otherwise it would claim the volume again before other hosts.
func TestAttemptHogs(t *testing.T) {
	s := &sham{claims: context.Canceled, holds: []api.Hold{{Host: "h1"}}}
	a := s.attempt(t)
	waits := a.claim
	a.claim = func(context.Context) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.mu.Lock()
		last := s.looks + 10
		s.script = func(s *sham) {
			if s.looks >= last {
				cancel()
			}
		}
		s.mu.Unlock()
		_ = waits(ctx)
		return &api.Error{Code: api.CodeTimeout, Message: "timed out: NodeStageVolume has not answered"}
	}
	if err := a.run(t.Context()); err == nil {
		t.Error("the claim that timed out is no error")
	}
	s.expectRan(t)
	if r, _ := a.files.read(); r.Failures != 1 {
		t.Errorf("%+v", r)
	}
}

// TestAttemptWithdraws checks that a waiting claim is withdrawn when the host is paused, and that the
// host claims again after that.
func TestAttemptWithdraws(t *testing.T) {
	s := &sham{claims: context.Canceled}
	a := s.attempt(t)
	s.script = func(s *sham) {
		switch s.looks {
		case 5:
			_ = a.files.pause(s.now)
		case 20:
			s.claims, s.state = nil, "ActiveState=inactive\n"
			_ = a.files.resume()
		}
	}
	if err := a.run(t.Context()); err != nil || !slices.Contains(s.said, "standby: paused by an administrator") {
		t.Errorf("%v, said %q", err, s.said)
	}
	s.expectRan(t, "start", stopped)
}

// TestAttemptTurn checks that a less preferred host waits for its turn after the holder is gone.
func TestAttemptTurn(t *testing.T) {
	s := &sham{holds: []api.Hold{{Host: "h0", HostState: api.HostReady}}}
	a := s.attempt(t, "h0", "h1")
	began := s.now
	s.script = func(s *sham) {
		switch s.looks {
		case 30:
			s.holds[0].HostState = api.HostGone
		case 60:
			s.state = "ActiveState=inactive\n"
		}
	}
	if err := a.run(t.Context()); err != nil {
		t.Error(err)
	}
	s.expectRan(t, "start", stopped)
	if s.now.Sub(began) < 60*time.Second {
		t.Errorf("it took %s and %d looks, said %q", s.now.Sub(began), s.looks, s.said)
	}
	if !slices.Contains(s.said, `standby: host "h0" holds the volume`) || !slices.Contains(s.said, "standby: preferred hosts go first, for 10s") {
		t.Errorf("said %q", s.said)
	}
}

// TestAttemptMove checks that a less preferred host takes the volume without a wait, if an administrator
// moves the volume to it.
func TestAttemptMove(t *testing.T) {
	s := &sham{holds: []api.Hold{{Host: "h0", HostState: api.HostReady}}, move: &api.Move{From: "h0", To: "h1"}}
	a := s.attempt(t, "h0", "h1")
	s.script = func(s *sham) {
		if s.claimed {
			s.state = "ActiveState=inactive\n"
		}
	}
	if err := a.run(t.Context()); err != nil || slices.ContainsFunc(s.said, func(text string) bool { return strings.Contains(text, "holds the volume") }) {
		t.Errorf("%v, said %q", err, s.said)
	}
	s.expectRan(t, "start", stopped)
}

// TestFiles checks the switch and the record of a service on disk.
func TestFiles(t *testing.T) {
	f := files{filepath.Join(t.TempDir(), "new"), "web.service"}
	if f.paused() {
		t.Error("a new host is paused")
	}
	now := time.Unix(1e9, 0).UTC()
	want := record{Failures: 3, Last: now, Until: now.Add(time.Minute)}
	if err := errors.Join(f.pause(now), f.write(want)); err != nil || !f.paused() {
		t.Errorf("the switch is off: %v", err)
	}
	if got, err := f.read(); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(f.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(f.recordPath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := f.read(); err == nil || got != (record{}) {
		t.Errorf("a damaged record: %+v, %v", got, err)
	}
	if err := errors.Join(f.resume(), f.resume()); err != nil || f.paused() {
		t.Errorf("the switch is on: %v", err)
	}
	if left, err := os.ReadDir(f.dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
