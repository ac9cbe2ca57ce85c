package csitest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// TestNoFalseAlarm makes calls that the spec permits after a failure. The plugin must not report a
// violation.
func TestNoFalseAlarm(t *testing.T) {
	unpublishError := func(b *bench) { b.inject(Fault{Method: NodeUnpublish, Code: codes.Internal, Effect: EffectDone}) }
	for name, do := range map[string]func(*bench){
		"stage again, and unstage, after a failure": func(b *bench) {
			b.must(b.attach("a"))
			b.inject(Fault{Method: NodeStage, Code: codes.Unavailable, Times: 2})
			b.code(codes.Unavailable, b.stage("a"))
			b.code(codes.Unavailable, b.stage("a"))
			b.must(b.unstage("a"))
			b.must(b.detach("a"))
		},
		"publish again after a failure": func(b *bench) {
			b.up("a")
			b.inject(Fault{Method: NodePublish, Code: codes.Unknown, Effect: EffectDone})
			b.code(codes.Unknown, b.publish("a", "t"))
			b.must(b.publish("a", "t"))
		},
		"unstage once nothing is mounted, whatever unpublish said": func(b *bench) {
			b.up("a", "t")
			unpublishError(b)
			b.code(codes.Internal, b.unpublish("a", "t"))
			b.must(b.unstage("a"))
		},
		"detach once the volume is unknown": func(b *bench) {
			b.up("a")
			b.inject(Fault{Method: NodeUnstage, Code: codes.NotFound, Effect: EffectDone})
			b.code(codes.NotFound, b.unstage("a"))
			b.must(b.detach("a"))
		},
		"another call after giving up": func(b *bench) {
			b.must(b.attach("a"))
			b.inject(Fault{Method: NodeStage, Hang: true})
			b.code(codes.DeadlineExceeded, b.stageWithin(time.Second, "a"))
			b.must(b.unstage("a"))
			b.must(b.cfg.Faults().Clear())
		},
		"another call over a new connection": func(b *bench) {
			b.must(b.attach("a"))
			b.inject(Fault{Method: NodeStage, Hang: true})
			done := make(chan error, 1)
			go func() { done <- b.stage("a") }()
			b.await(NodeStage)
			b.must(b.conn.Close())
			b.code(codes.Canceled, <-done)
			b.dial()
			b.must(b.unstage("a"))
			b.must(b.cfg.Faults().Clear())
		},
		"different volumes at once": func(b *bench) {
			b.inject(Fault{Method: ControllerPublish, Volume: "a", Hang: true})
			done := make(chan error, 1)
			go func() { done <- b.attach("a") }()
			b.await(ControllerPublish)
			b.must(b.attach("b"))
			b.must(b.cfg.Faults().Clear())
			b.must(<-done)
		},
		"after a restart of the plugin": func(b *bench) {
			b.up("a", "t")
			b.restart()
			b.must(b.publish("a", "t"))
			b.must(b.publish("a", "u"))
			b.must(b.unpublish("a", "t"))
			b.must(b.unpublish("a", "u"))
			b.must(b.unstage("a"))
			b.must(b.detach("a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, full)
			do(b)
			b.noViolations()
		})
	}
}

// TestOverlapWaits makes a call after the caller of an earlier call has ended. If the two callers
// use different connections, the plugin may receive the new call before it notices the end of the
// earlier caller. The test simulates this case.
func TestOverlapWaits(t *testing.T) {
	for name, row := range map[string]struct {
		happens func(other *live, gone context.CancelFunc)
		broken  int
	}{
		"gone":               {func(_ *live, gone context.CancelFunc) { gone() }, 0},
		"gone, and answered": {func(o *live, gone context.CancelFunc) { gone(); o.late = true; close(o.done) }, 0},
		"answered":           {func(o *live, gone context.CancelFunc) { close(o.done); gone() }, 1},
		"nothing":            {func(*live, context.CancelFunc) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			if err := r.open(filepath.Join(t.TempDir(), "j")); err != nil {
				t.Fatal(err)
			}
			ctx, gone := context.WithCancel(t.Context())
			defer gone()
			other := &live{caller: callerAddr{number: 1}, ctx: ctx, done: make(chan struct{})}
			time.AfterFunc(20*time.Millisecond, func() { row.happens(other, gone) })
			r.overlap(&live{caller: callerAddr{number: 2}}, other)
			if got := r.history().Violations; len(got) != row.broken {
				t.Errorf("violations: %v", got)
			}
			if err := r.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLateAnswerIsNoAnswer checks an OK answer to NodeStage that comes after the caller has given
// up. The answer must not count, because the caller does not know whether the volume is staged.
func TestLateAnswerIsNoAnswer(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: NodeStage, Delay: 1500 * time.Millisecond})
	b.code(codes.DeadlineExceeded, b.stageWithin(500*time.Millisecond, "a"))
	calls, err := AwaitCalls(b.ctx(), b.cfg.JournalPath(), func(cs Calls) bool { return cs[len(cs)-1].Ended() })
	b.must(err)
	if c := calls.Only(NodeStage)[0]; c.Code != okCode || !c.Late || c.OK() {
		t.Errorf("call: %+v", c)
	}
	_ = b.publish("a", "t")
	if got := b.p.Violations(); len(got) != 1 || got[0].Rule != RuleOrder {
		t.Errorf("violations: %v", got)
	}
}

// TestRestartForgetsNothing restarts the plugin with the same journal. The new plugin must report
// the same violations as the old one.
func TestRestartForgetsNothing(t *testing.T) {
	b := start(t, full)
	b.up("a", "t")
	b.restart()
	_ = b.unstage("a")
	b.restart()
	got := b.p.Violations()
	if len(got) != 1 || got[0].Rule != RuleOrder || !strings.Contains(got[0].Words, b.target("t")) {
		t.Errorf("violations: %v", got)
	}
	if j := b.journal(); j.Starts != 3 || !slices.Equal(j.Calls.Methods(), []string{ControllerPublish, NodeStage, NodePublish, NodeUnstage}) {
		t.Errorf("%d starts, calls:\n%s", j.Starts, j.Calls)
	}
}
