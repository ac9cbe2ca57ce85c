package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Restart asks for a plugin to be stopped and started again; a changed file
// comes into force. It is refused while volumes are in use through the plugin,
// unless forced, and where somebody else runs it. One that was stopped on
// purpose is started.
func (s *Supervisor) Restart(id string, force bool) error {
	return s.end(id, force, "restart", "-y", func(p *plugin) { p.restart, p.halt, p.kick = true, false, true })
}

// Stop asks for a plugin to be stopped, and to stay so until Start. It is
// refused as Restart is.
func (s *Supervisor) Stop(id string, force bool) error {
	return s.end(id, force, "stop", "--force", func(p *plugin) { p.restart, p.halt = false, true })
}

// Start undoes a stop, and has a plugin that is not ready tried at once. One
// that runs goes on.
func (s *Supervisor) Start(id string) error {
	p := s.find(id)
	if p == nil {
		return unknown(id)
	}
	if err := p.removed(); err != nil {
		return err
	}
	p.mu.Lock()
	p.halt, p.kick = false, true
	p.mu.Unlock()
	p.poke()
	return nil
}

// end asks for the end of what runs of a plugin, if that may be.
func (s *Supervisor) end(id string, force bool, verb, flag string, ask func(*plugin)) error {
	p := s.find(id)
	if p == nil {
		return unknown(id)
	}
	if err := p.ours(verb); err != nil {
		return err
	}
	take := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		ask(p)
	}
	if force {
		take()
	} else if err := p.ifSpare(verb, flag, take); err != nil {
		return err
	}
	p.poke()
	return nil
}

// ifSpare takes a request up if no volume is in use. It asks with the door open
// first, since to close it in vain costs every volume a look, and then with the
// door closed: a volume may just have come in.
func (p *plugin) ifSpare(verb, flag string, take func()) error {
	if err := p.spare(verb, flag); err != nil {
		return err
	}
	p.ask(1)
	err := p.spare(verb, flag)
	if err == nil {
		take()
	}
	p.ask(-1)
	if err != nil {
		p.s.notify(p.id) // somebody may have seen the door closed, and wait
	}
	return err
}

// ask counts the requests that keep the door closed.
func (p *plugin) ask(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking += n
}

// removed refuses what would be lost on a plugin that is about to be no more.
func (p *plugin) removed() error {
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	if next == nil || next.def != nil {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "the file of plugin %q was removed: put it back, or have the plugin end when nothing is staged through it any more", p.id).
		WithHint("volctl plugin status %s", p.id)
}

// ours refuses what can be asked only of a plugin that this agent runs.
func (p *plugin) ours(verb string) error {
	if err := p.removed(); err != nil {
		return err
	}
	p.mu.Lock()
	def, pid, halted := p.def, p.pid, p.halted
	p.mu.Unlock()
	switch {
	case def == nil || def.Socket == "" || halted:
		return nil
	case pid == 0:
		return volume.Errorf(volume.ErrRefused, "plugin %q is not this agent's to %s: it is run by whoever serves its socket %s, which nobody does now", p.id, verb, def.Socket).
			WithHint("volctl plugin status %s", p.id)
	default:
		return volume.Errorf(volume.ErrRefused, "plugin %q is not this agent's to %s: it is run by process %d, which serves its socket %s", p.id, verb, pid, def.Socket).
			WithHint("systemctl status %d", pid)
	}
}

// named is how many volumes a refusal names.
const named = 5

// spare refuses while volumes are in use through the plugin. One of which
// nothing runs, on purpose, has none to lose.
func (p *plugin) spare(verb, flag string) error {
	ids := p.s.inUse(p.id)
	p.mu.Lock()
	halted := p.halted
	p.mu.Unlock()
	if len(ids) == 0 || halted {
		return nil
	}
	quoted := make([]string, 0, named+1)
	for _, id := range ids[:min(len(ids), named)] {
		quoted = append(quoted, fmt.Sprintf("%q", id))
	}
	if more := len(ids) - named; more > 0 {
		quoted = append(quoted, fmt.Sprintf("%d more", more))
	}
	return volume.Errorf(volume.ErrRefused, "plugin %q is in use, by %s; mounts that live in its process (FUSE) break with its end",
		p.id, strings.Join(quoted, ", ")).WithHint("volctl plugin %s %s "+flag, verb, p.id)
}

// AwaitStarted waits until a plugin is ready that was asked to start, or to
// start again, at a time. It ends early when that cannot be without a person.
func (s *Supervisor) AwaitStarted(ctx context.Context, id string, asked time.Time) error {
	return s.await(ctx, id, func(p *plugin) (bool, error) {
		p.mu.Lock()
		now := p.m.snapshot()
		pending, halt, fault, nothing := p.restart || p.halted, p.halt, p.fault, p.def == nil
		p.mu.Unlock()
		switch {
		case halt:
			return false, volume.Errorf(volume.ErrRefused, "plugin %q was stopped meanwhile", id).WithHint("volctl plugin start %s", id)
		case pending:
			return false, nil
		case nothing && fault != nil:
			return false, volume.Errorf(volume.ErrPluginUnavailable, "plugin %q cannot be started: %s", id, fault).WithHint("volctl plugin status %s", id)
		case now.state == Failed && now.since.After(asked):
			return false, volume.Errorf(volume.ErrPluginUnavailable, "plugin %q is %s: %s", id, now.state, now.reason).WithHint("volctl plugin status %s", id)
		}
		return now.state == Ready, nil
	})
}

// AwaitStopped waits until nothing runs of a plugin that was stopped.
func (s *Supervisor) AwaitStopped(ctx context.Context, id string) error {
	return s.await(ctx, id, func(p *plugin) (bool, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.halt {
			return false, volume.Errorf(volume.ErrRefused, "plugin %q was started meanwhile", id).WithHint("volctl plugin status %s", id)
		}
		return p.halted, nil
	})
}

// await waits until a plugin is as ok wants it. No lock is held meanwhile.
func (s *Supervisor) await(ctx context.Context, id string, ok func(*plugin) (bool, error)) error {
	for {
		changed := s.Changed(id)
		p := s.find(id)
		if p == nil {
			return volume.Errorf(volume.ErrNotFound, "plugin %q is no more: its file was removed", id).WithHint("volctl plugin list")
		}
		if done, err := ok(p); done || err != nil {
			return err
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
		now := p.m.snapshot()
		msg := fmt.Sprintf("timed out: plugin %q is %s", id, now.state)
		if now.reason != "" {
			msg += ": " + now.reason
		}
		return volume.Errorf(volume.ErrTimeout, "%s", msg).WithHint("volctl plugin status %s", id)
	}
}
