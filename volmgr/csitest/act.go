package csitest

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// intercept handles every call. It writes the call to the journal and checks the rules. Then it
// performs the call, with the fault that matches the call if there is one, and writes the result.
func (p *Plugin) intercept(ctx context.Context, msg any, info *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
	if !p.enter() {
		return nil, p.stopped()
	}
	defer p.work.Done()
	l, fault, others := p.rec.begin(ctx, p.cfg, p.describe(info.FullMethod, msg), p.Faults())

	for _, o := range others {
		p.rec.overlap(l, o)
	}

	// A real plugin continues its work after the caller has given up, so the effect must not end
	// with ctx.
	effect := func(o options) (any, error) {
		return do(context.WithValue(context.WithoutCancel(ctx), optionsKey{}, o), msg)
	}
	if s, known := shapes[l.call.Method]; !known || !s.offered(p.cfg) {
		effect = func(options) (any, error) {
			return nil, status.Error(codes.Unimplemented, "the plugin does not offer this call")
		}
	}

	var resp any
	var err error
	done := p.turn(l.call.Volume)
	if fault == nil {
		resp, err = effect(options{call: l.call})
	} else {
		resp, err = p.goWrong(l, *fault, effect)
	}

	if err != nil {
		err = coded(err)
	}

	p.rec.end(l, resp, err)
	done() // the next call for the volume may begin now
	if errors.Is(context.Cause(p.running), errCrashed) {
		<-ctx.Done() // send no answer before the connection breaks
	}

	return resp, err
}

// turn waits until no other call for the volume is running. It does nothing unless Config.Serial is
// set.
func (p *Plugin) turn(volume string) (done func()) {
	if !p.cfg.Serial || volume == "" {
		return func() {}
	}
	l, _ := p.turns.LoadOrStore(volume, &sync.Mutex{})
	mu := l.(*sync.Mutex)
	mu.Lock()
	return mu.Unlock
}

// options control how the plugin's services perform a call.
type options struct {
	ignoreReadOnly bool
	twist          Twist
	fault          string // id of the fault
	call           Call
}

type optionsKey struct{}

func optionsOf(ctx context.Context) options {
	o, _ := ctx.Value(optionsKey{}).(options)
	return o
}

// goWrong performs the steps of the fault f; see Fault.
func (p *Plugin) goWrong(l *live, f Fault, effect func(options) (any, error)) (resp any, err error) {
	opts := options{ignoreReadOnly: f.IgnoreReadOnly, twist: f.Twist, fault: f.ID, call: l.call}
	if f.Hang {
		p.hang(f.ID)
	}
	if f.Effect != EffectLater {
		done, err := p.delay(l, f)
		if err != nil {
			return nil, err
		}
		defer done()
	}

	if err := p.die(l, f, BeforeEffect); err != nil {
		return nil, err
	}
	if p.running.Err() != nil {
		return nil, p.stopped()
	}

	switch {
	case f.Effect == EffectDone, f.Effect == EffectAuto && f.Code == codes.OK:
		if resp, err = effect(opts); err == nil {
			f.Twist.bend(resp)
		}
	case f.Effect == EffectLater:
		resp = emptyAnswer(l.call)
		p.later(f.Delay, func() error { _, err := effect(opts); return err })
	default:
		resp = emptyAnswer(l.call)
	}

	if err := p.die(l, f, AfterEffect); err != nil {
		return nil, err
	}
	if f.Code != codes.OK {
		return nil, status.Error(f.Code, f.Message)
	}

	return resp, err
}

// hang waits until the test removes the fault.
func (p *Plugin) hang(id string) {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()

	for p.Faults().holds(id) {
		select {
		case <-again.C:
		case <-p.running.Done():
			return
		}
	}
}

func (p *Plugin) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.running.Done():
	}
}

// later performs an effect after the answer. It ignores the error of the effect, because tests
// check only whether the mount exists.
func (p *Plugin) later(d time.Duration, effect func() error) {
	if !p.enter() {
		return
	}

	go func() {
		defer p.work.Done()
		p.wait(d)
		if p.running.Err() == nil {
			_ = effect() // the comment of the function later explains why the error is ignored
		}
	}()
}

// die kills the plugin or the caller if the fault requires this at the moment now. It returns an
// error if the call must not continue.
func (p *Plugin) die(l *live, f Fault, now Moment) error {
	if f.KillCaller == now && now != Never {
		if err := p.killCaller(l); err != nil {
			return err
		}
	}

	if f.Crash == now && now != Never {
		p.crash()
		return p.stopped()
	}

	return nil
}

// killCaller kills the caller and waits until its connection has ended.
func (p *Plugin) killCaller(l *live) error {
	if l.caller.pid == 0 || l.caller.pid == os.Getpid() {
		return status.Error(codes.Internal, "cannot kill the caller: it is in the plugin's process, or unknown")
	}
	if err := unix.Kill(l.caller.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return status.Errorf(codes.Internal, "cannot kill the caller: %v", err)
	}

	select {
	case <-l.ctx.Done():
		return nil
	case <-p.running.Done():
		return p.stopped()
	}
}

func (p *Plugin) stopped() error {
	return status.Error(codes.Unavailable, context.Cause(p.running).Error())
}

// coded adds a gRPC code to an error that has none.
func coded(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.Error(codes.Internal, err.Error())
}
