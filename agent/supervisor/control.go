package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Restart asks for a plugin to be stopped and started again. A changed file then comes into force.
// A plugin that was stopped on purpose is started. Restart is refused while volumes are in use
// through the plugin, unless forced. It is also refused if this agent does not run the plugin. Like
// all requests here, it applies to all parts of the plugin, unless an Only limits it.
func (s *Supervisor) Restart(id string, force bool, only ...Only) error {
	return s.end(id, force, "restart", "-y", only, func(p *plugin) { p.restart, p.halt, p.paused, p.kick = true, false, false, true })
}

// Stop asks for a plugin to be stopped, and to stay stopped until Start. It is refused in the same
// cases as Restart.
func (s *Supervisor) Stop(id string, force bool, only ...Only) error {
	return s.end(id, force, "stop", "--force", only, func(p *plugin) {
		// A plugin that is only paused is stopped once more, which stores the stop.
		p.restart, p.halt, p.halted, p.paused = false, true, p.halted && !p.paused, false
	})
}

// Pause is a Stop that lasts until this agent ends: the next agent starts the plugin. A plugin that
// is already stopped stays stopped.
func (s *Supervisor) Pause(id string, force bool, only ...Only) error {
	return s.end(id, force, "stop", "--force", only, func(p *plugin) {
		p.restart, p.halt, p.paused = false, true, p.paused || !p.halt
	})
}

// Start ends a stop, and makes a plugin that is not ready try again at once. A plugin that runs is
// not disturbed.
func (s *Supervisor) Start(id string, only ...Only) error {
	parts, err := s.selected(id, only)
	if err != nil {
		return err
	}

	for _, p := range parts {
		if err := p.removed(); err != nil {
			return err
		}
	}

	for _, p := range parts {
		p.mu.Lock()
		p.halt, p.paused, p.kick = false, false, true
		p.mu.Unlock()
		p.poke()
	}

	return nil
}

// end asks for the end of a plugin's instances, if that is allowed.
func (s *Supervisor) end(id string, force bool, verb, flag string, only []Only, ask func(*plugin)) error {
	parts, err := s.selected(id, only)
	if err != nil {
		return err
	}

	for _, p := range parts {
		if err := p.ours(verb); err != nil {
			return err
		}
	}

	take := func() {
		for _, p := range parts {
			p.mu.Lock()
			ask(p)
			p.mu.Unlock()
		}
	}

	if force {
		take()
	} else if err := s.ifSpare(parts, verb, flag, only, take); err != nil {
		return err
	}

	for _, p := range parts {
		p.poke()
	}

	return nil
}

// ifSpare calls take if no volume is in use. The first check does not block calls, since blocking
// them in vain makes every volume look at its plugin again. The second check runs while new calls
// are blocked: a volume may just have started to use the plugin, or another controller may have
// ended.
func (s *Supervisor) ifSpare(parts []*plugin, verb, flag string, only []Only, take func()) error {
	if err := spare(parts, verb, flag, only); err != nil {
		return err
	}

	err := func() error {
		s.doors.Lock()
		defer s.doors.Unlock()

		ask(parts, 1)
		defer ask(parts, -1)

		err := spare(parts, verb, flag, only)
		if err == nil {
			take()
		}

		return err
	}()

	if err != nil {
		for _, p := range parts {
			s.notify(p) // a waiter may have seen the plugin blocked
		}
	}

	return err
}

// ask adds n to the number of requests that block new calls to the parts.
func ask(parts []*plugin, n int) {
	for _, p := range parts {
		p.mu.Lock()
		p.asking += n
		p.mu.Unlock()
	}
}

// removed refuses requests that would be lost because the plugin is about to be removed.
func (p *plugin) removed() error {
	p.mu.Lock()
	next, def := p.next, p.def
	p.mu.Unlock()

	switch {
	case next == nil || next.def != nil:
		return nil
	case def != nil && def.Registered:
		return volume.Errorf(volume.ErrRefused, "%s is deregistered: register it again, or have it end when nothing is staged through it any more", p.title()).
			WithHint("volctl plugin deregister %s --force", p.id)
	}

	return volume.Errorf(volume.ErrRefused, "the file of %s was removed: put it back, or have the plugin end when nothing is staged through it any more", p.title()).
		WithHint("volctl plugin status %s", p.id)
}

// ours refuses requests that are possible only for a plugin that this agent runs.
func (p *plugin) ours(verb string) error {
	if err := p.removed(); err != nil {
		return err
	}

	p.mu.Lock()
	def, traits, pid, halted := p.def, p.traits, p.pid, p.halted
	p.mu.Unlock()

	switch {
	case def == nil || traits.Owned || halted:
		return nil
	case pid == 0:
		return volume.Errorf(volume.ErrRefused, "%s is not this agent's to %s: it is run by whoever serves its socket %s, which nobody does now", p.title(), verb, traits.Socket).
			WithHint("volctl plugin status %s", p.id)
	default:
		return volume.Errorf(volume.ErrRefused, "%s is not this agent's to %s: it is run by process %d, which serves its socket %s", p.title(), verb, pid, traits.Socket).
			WithHint("%s", volume.Command("systemctl status %d", pid))
	}
}

// named is the largest number of volumes that a refusal names.
const named = 5

// spare returns an error while volumes are in use through any of the parts.
func spare(parts []*plugin, verb, flag string, only []Only) error {
	for _, p := range parts {
		if err := p.spare(verb, flag, only); err != nil {
			return err
		}
	}
	return nil
}

// spare returns an error while volumes are in use through the part. If the part was stopped on
// purpose and has no instance, volumes have nothing to lose.
func (p *plugin) spare(verb, flag string, only []Only) error {
	ids := p.inUse()
	p.mu.Lock()
	halted, controller := p.halted, p.kind() == typeController
	p.mu.Unlock()
	if len(ids) == 0 || halted {
		return nil
	}

	command, args := "volctl plugin "+verb+" %s", []any{p.id}
	for _, o := range only {
		command, args = o.narrow(command, args)
	}

	breaks := p.s.breaks(p.id)
	if controller {
		breaks = "no other controller would be ready, and nothing is attached or detached meanwhile"
	}

	return volume.Errorf(volume.ErrRefused, "%s is in use, by %s; %s", p.title(), names(ids), breaks).
		WithHint(command+" "+flag, args...)
}

// breaks says how the end of a plugin's process affects mounts.
func (s *Supervisor) breaks(id string) string {
	if s.opts.FUSE == nil {
		return "mounts that live in its process (FUSE) break with its end"
	}
	switch n := s.opts.FUSE(id); n {
	case 0:
		return "no claim has a FUSE mount that could break with its end"
	case 1:
		return "1 claim has a FUSE mount, which breaks if its process serves it"
	default:
		return fmt.Sprintf("%d claims have FUSE mounts, which break if its process serves them", n)
	}
}

// names lists ids for a refusal.
func names(ids []string) string {
	quoted := make([]string, 0, named+1)
	for _, id := range ids[:min(len(ids), named)] {
		quoted = append(quoted, fmt.Sprintf("%q", id))
	}

	if more := len(ids) - named; more > 0 {
		quoted = append(quoted, fmt.Sprintf("%d more", more))
	}

	return strings.Join(quoted, ", ")
}

// AwaitStarted waits until a plugin is ready that was asked, at the time asked, to start or
// restart. It ends early if the plugin cannot become ready without an operator.
func (s *Supervisor) AwaitStarted(ctx context.Context, id string, asked time.Time, only ...Only) error {
	return s.await(ctx, id, only, func(p *plugin) (bool, error) {
		p.mu.Lock()
		now := p.m.snapshot()
		pending, halt, fault, nothing := p.restart || p.halted, p.halt, p.fault, p.def == nil
		p.mu.Unlock()

		switch {
		case halt:
			return false, volume.Errorf(volume.ErrRefused, "%s was stopped meanwhile", p.title()).WithHint("volctl plugin start %s", id)
		case pending:
			return false, nil
		case nothing && fault != nil:
			return false, volume.Errorf(volume.ErrPluginUnavailable, "%s cannot be started: %s", p.title(), fault).WithHint("volctl plugin status %s", id)
		case now.state == Failed && now.since.After(asked):
			return false, volume.Errorf(volume.ErrPluginUnavailable, "%s is %s: %s", p.title(), now.state, now.reason).WithHint("volctl plugin status %s", id)
		}

		return now.state == Ready, nil
	})
}

// AwaitStopped waits until no instance of a stopped plugin runs.
func (s *Supervisor) AwaitStopped(ctx context.Context, id string, only ...Only) error {
	return s.await(ctx, id, only, func(p *plugin) (bool, error) {
		p.mu.Lock()
		halt, halted := p.halt, p.halted
		p.mu.Unlock()
		if !halt {
			return false, volume.Errorf(volume.ErrRefused, "%s was started meanwhile", p.title()).WithHint("volctl plugin status %s", id)
		}

		return halted, nil
	})
}

// await waits until ok returns true for all parts. It holds no lock while it waits.
func (s *Supervisor) await(ctx context.Context, id string, only []Only, ok func(*plugin) (bool, error)) error {
	for {
		changed := s.Changed(id)
		parts, err := s.selected(id, only)
		if err != nil {
			return volume.Errorf(volume.ErrNotFound, "plugin %q is no more: its file was removed, or it was deregistered", id).WithHint("volctl plugin list")
		}

		var late *plugin
		for _, p := range parts {
			done, err := ok(p)
			if err != nil {
				return err
			}
			if !done && late == nil {
				late = p
			}
		}

		if late == nil {
			return nil
		}

		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}

		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}

		now := late.m.snapshot()
		msg := fmt.Sprintf("timed out: %s is %s", late.title(), now.state)
		if now.reason != "" {
			msg += ": " + now.reason
		}

		return volume.Errorf(volume.ErrTimeout, "%s", msg).WithHint("volctl plugin status %s", id)
	}
}
