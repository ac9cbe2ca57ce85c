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

// late is the effect of a call that happens even if the plugin has died, because the storage system
// performs it. The plugin stores the effect in a file in <base>/late, whose name is the number of
// the call. While the plugin runs, it regularly updates the modification time of the file. The next
// plugin therefore knows when the previous plugin died.
type late struct {
	Call    Call          `json:"call"`
	Due     time.Time     `json:"due"`
	Promise time.Duration `json:"promise,omitempty"` // maximum time from the plugin's death to the effect; 0 means no limit
}

func (p *Plugin) latePath(c Call) string {
	return filepath.Join(p.cfg.Base, "late", strconv.FormatInt(c.Seq, 10)+".json")
}

// promise returns the time within which a bounded call must take effect, counted from the end of
// its caller.
func (l *live) promise() time.Duration {
	deadline, ok := l.ctx.Deadline()
	if !ok {
		return 0
	}
	return deadline.Sub(l.call.Start) * 9 / 10
}

// delay waits for the delay of a fault. The caller must perform the effect and then call the
// returned function.
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
			// The caller has ended. Even if the plugin dies as well, the effect must happen at this
			// earlier time.
			e.Due = end
			// If the file cannot be written, the effect may happen too late, and the test then
			// fails.
			_ = writeJSON(path, e)
		}

		// If the time cannot be updated, the effect happens earlier, which is allowed.
		_ = os.Chtimes(path, time.Time{}, time.Now())
	})

	return func() {
		// If the plugin has stopped, the next plugin performs the effect.
		if p.running.Err() == nil {
			// If the file cannot be removed, the next plugin repeats the effect, which changes
			// nothing.
			_ = os.Remove(path)
		}
	}, nil
}

// pause waits for the delay of a fault. A bounded delay ends early if the caller ends. While pause
// waits, it repeatedly calls alive with the time at which the delay will end.
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

// resume performs the effects of calls during which an earlier plugin died. It performs overdue
// effects at once, before the first call, and the other effects when they are due.
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

// takeEffect connects or disconnects the storage for a call whose caller no longer waits for an
// answer.
func (p *Plugin) takeEffect(c Call) error {
	defer p.store.lock(c.Volume)()
	if c.Method == ControllerPublish {
		_, err := p.store.attach(c.Volume, c.NodeID)
		return err
	}
	return p.detach(c)
}
