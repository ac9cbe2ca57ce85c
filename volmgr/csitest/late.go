package csitest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// late is an effect that comes although the plugin died before it: the storage
// itself does it. It is a file in <base>/late, named after the call, which the
// living plugin touches, so that the next one knows when its predecessor died.
type late struct {
	Call    Call          `json:"call"`
	Due     time.Time     `json:"due"`
	Promise time.Duration `json:"promise,omitempty"` // after the plugin's death; 0 promises nothing
}

func (p *Plugin) latePath(c Call) string {
	return filepath.Join(p.cfg.Base, "late", strconv.FormatInt(c.Seq, 10)+".json")
}

// promise is how long after the end of its caller a bounded call may take effect.
func (l *live) promise() time.Duration {
	deadline, ok := l.ctx.Deadline()
	if !ok {
		return 0
	}
	return deadline.Sub(l.call.Start) * 9 / 10
}

// delay waits as long as a fault says. The function that it returns must be called
// after the effect.
func (p *Plugin) delay(l *live, f Fault) (done func(), err error) {
	if f.Delay <= 0 {
		return func() {}, nil
	}
	if !f.Outlives {
		p.pause(l, f, func(time.Time) {})
		return func() {}, nil
	}
	path, e := p.latePath(l.call), late{Call: l.call, Due: now().Add(f.Delay)}
	if f.Bounded {
		e.Promise = l.promise()
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, e)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	p.pause(l, f, func(end time.Time) {
		if end.Before(e.Due) {
			// The caller has ended. If the plugin dies too, the effect still comes as early.
			e.Due = end
			_ = writeJSON(path, e) // a failure fails the run, which sees a later effect
		}
		_ = os.Chtimes(path, time.Time{}, time.Now()) // a failure moves the effect to an earlier time
	})
	return func() {
		if p.running.Err() == nil { // else the next plugin does it
			_ = os.Remove(path) // done twice it is the same
		}
	}, nil
}

// pause waits for the delay of a fault, less where it is bounded. Meanwhile it calls
// alive with the time at which it will end.
func (p *Plugin) pause(l *live, f Fault, alive func(end time.Time)) {
	end := time.Now().Add(f.Delay)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	bounded := f.Bounded
	for time.Now().Before(end) && p.running.Err() == nil {
		if bounded && l.ctx.Err() != nil {
			bounded = false
			if latest := time.Now().Add(l.promise()); latest.Before(end) {
				end = latest
			}
		}
		select {
		case <-tick.C:
			alive(end)
		case <-p.running.Done():
		}
	}
}

// resume does the effects of calls whose plugin died. Those that are due come
// before the first call, the others in their time.
func (p *Plugin) resume() error {
	files, err := filepath.Glob(filepath.Join(p.cfg.Base, "late", "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		var e late
		info, err := os.Stat(file)
		if err == nil {
			_, err = readJSON(file, &e)
		}
		if err != nil {
			return fmt.Errorf("cannot resume a late effect: %w", err)
		}
		if latest := info.ModTime().Add(e.Promise); e.Promise > 0 && latest.Before(e.Due) {
			e.Due = latest
		}
		do := func() error { return errors.Join(p.takeEffect(e.Call), os.Remove(file)) }
		if wait := time.Until(e.Due); wait > 0 {
			p.later(wait, do)
		} else if err := do(); err != nil {
			return fmt.Errorf("cannot resume a late effect: %w", err)
		}
	}
	return nil
}

// takeEffect attaches or detaches, without an answer to anybody.
func (p *Plugin) takeEffect(c Call) error {
	defer p.store.lock(c.Volume)()
	if c.Method == ControllerPublish {
		_, err := p.store.attach(c.Volume, c.NodeID)
		return err
	}
	return p.detach(c)
}
