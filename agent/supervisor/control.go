package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// requests carries out the operator's requests to restart, stop and start plugins.
type requests struct{ *parts }

// Restart requests that a plugin is stopped and started again. The new instance uses the current
// plugin file. A plugin that an operator stopped starts, too.
//
// Without force, Restart returns an error while volumes are in use through the plugin. It also
// returns an error if this agent does not run the plugin. Like all requests here, Restart applies
// to all parts of the plugin, unless the argument only selects some of them.
func (s *requests) Restart(id string, force bool, only ...part.Only) error {
	return s.end(id, force, "restart", "-y", only, (*part.Desired).AskRestart)
}

// Stop requests that a plugin is stopped. The plugin stays stopped until Start is called. Stop
// returns errors in the same cases as Restart.
func (s *requests) Stop(id string, force bool, only ...part.Only) error {
	return s.end(id, force, "stop", "--force", only, (*part.Desired).AskStop)
}

// Pause stops a plugin until this agent ends. The next agent starts the plugin again. A plugin that
// was already stopped by Stop stays stopped.
func (s *requests) Pause(id string, force bool, only ...part.Only) error {
	return s.end(id, force, "stop", "--force", only, (*part.Desired).AskPause)
}

// Start ends a Stop or a Pause. If the plugin is not ready, it is started at once. Start does not
// affect a running plugin.
func (s *requests) Start(id string, only ...part.Only) error {
	parts, err := s.selected(id, only)
	if err != nil {
		return err
	}

	for _, g := range s.glancesOf(parts) {
		if err := removed(g); err != nil {
			return err
		}
	}

	for _, p := range parts {
		p.change((*part.Desired).AskStart)
	}

	return nil
}

// end requests the end of a plugin's instances by calling the function ask, unless volumes in use
// forbid it.
func (s *requests) end(id string, force bool, verb, flag string, only []part.Only, ask func(*part.Desired)) error {
	parts, err := s.selected(id, only)
	if err != nil {
		return err
	}

	for i, g := range s.glancesOf(parts) {
		if err := ours(parts[i], g, verb); err != nil {
			return err
		}
	}

	take := func() {
		for _, p := range parts {
			p.mu.Lock()
			ask(&p.desired)
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

// ifSpare calls take if no volume in use needs the parts. It checks twice. The first check does not
// block new calls, because each block makes every volume check its plugin again. The second check
// runs while new calls are blocked: since the first check, a volume may have started to use the
// plugin, or another controller may have ended.
func (s *requests) ifSpare(parts []*supervised, verb, flag string, only []part.Only, take func()) error {
	if err := s.spare(parts, verb, flag, only); err != nil {
		return err
	}

	err := func() error {
		s.doors.Lock()
		defer s.doors.Unlock()

		block(parts, 1)
		defer block(parts, -1)

		err := s.spare(parts, verb, flag, only)
		if err == nil {
			take()
		}

		return err
	}()

	if err != nil {
		for _, p := range parts {
			s.notify(p) // a caller that found new calls blocked waits for this notification
		}
	}

	return err
}

// block adds n to the number of requests that block new calls to each part. A negative n ends a
// block.
func block(parts []*supervised, n int) {
	for _, p := range parts {
		p.mu.Lock()
		p.asking += n
		p.mu.Unlock()
	}
}

// glancesOf returns the current states of the given parts of one plugin.
func (s *requests) glancesOf(parts []*supervised) part.Whole {
	all := glances(parts)
	for _, g := range all {
		g.Several = len(s.of(g.ID)) > 1
	}
	return all
}

// glance returns the current state of one part.
func (s *requests) glance(p *supervised) *part.Glance { return s.glancesOf([]*supervised{p})[0] }

// removed returns an error if the plugin is about to be removed, because a request would then have
// no effect.
func removed(g *part.Glance) error {
	switch {
	case !g.Leaves():
		return nil
	case g.Definition != nil && g.Definition.Registered:
		return volume.Errorf(volume.ErrRefused, "%s is deregistered: register it again, or let it end when no volume is staged through it", g.Title()).
			WithHint("%s", suggest.Command("volctl plugin deregister %s --force", g.ID))
	}

	return volume.Errorf(volume.ErrRefused, "the file of %s was removed or disabled: put it back, or let the plugin end when no volume is staged through it", g.Title()).
		WithRemedy(remedy.Of(remedy.ShowPlugin, g.ID))
}

// ours returns an error if this agent does not run the plugin, because the request is possible only
// for a plugin that the agent runs.
func ours(p *supervised, g *part.Glance, verb string) error {
	if err := removed(g); err != nil {
		return err
	}

	p.mu.Lock()
	run := p.traits
	p.mu.Unlock()

	switch {
	case g.Definition == nil || run.Owned || g.Settled.Halts():
		return nil
	case g.PID == 0:
		return volume.Errorf(volume.ErrRefused, "cannot %[2]s %[1]s: this agent does not run it, and no process serves its socket %[3]s", g.Title(), verb, run.Socket).
			WithRemedy(remedy.Of(remedy.ShowPlugin, g.ID))
	default:
		return volume.Errorf(volume.ErrRefused, "cannot %[2]s %[1]s: this agent does not run it; process %[3]d serves its socket %[4]s", g.Title(), verb, g.PID, run.Socket).
			WithHint("%s", suggest.Command("systemctl status %d", g.PID))
	}
}

// named is the maximum number of volume ids in an error message.
const named = 5

// spare returns an error while volumes are in use through any of the parts. A part that an operator
// stopped and that has no instance can always be stopped again.
func (s *requests) spare(parts []*supervised, verb, flag string, only []part.Only) error {
	for _, p := range parts {
		ids, g := p.needed(), s.glance(p)
		if len(ids) == 0 || g.Settled.Halts() {
			continue
		}

		command, args := "volctl plugin "+verb+" %s", []any{p.id}
		for _, o := range only {
			command, args = o.Narrow(command, args)
		}

		breaks := s.breaks(p.id)
		if g.Kind == part.Controller {
			breaks = "no other controller would be ready, and nothing is attached or detached meanwhile"
		}

		return volume.Errorf(volume.ErrRefused, "%s is in use, by %s; %s", g.Title(), names(ids), breaks).
			WithHint(command+" "+flag, args...)
	}

	return nil
}

// names joins volume ids for an error message, and omits ids from a long list.
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

// AwaitStarted waits until a plugin is ready after a call of Start or Restart. The argument asked
// is the time of this call. AwaitStarted returns an error early if the plugin cannot become ready
// without an action of an operator.
func (s *requests) AwaitStarted(ctx context.Context, id string, asked time.Time, only ...part.Only) error {
	return s.await(ctx, id, only, func(g *part.Glance) (bool, error) {
		now := g.Status
		switch {
		case g.Wish.Halts():
			return false, volume.Errorf(volume.ErrRefused, "%s was stopped meanwhile", g.Title()).WithRemedy(remedy.Of(remedy.StartPlugin, id))
		case g.Wish != g.Settled:
			return false, nil
		case g.Definition == nil && g.Fault != nil:
			return false, volume.Errorf(volume.ErrPluginUnavailable, "%s cannot be started: %s", g.Title(), g.Fault).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
		case now.State == part.Failed && now.Since.After(asked):
			return false, volume.Errorf(volume.ErrPluginUnavailable, "%s is %s: %s", g.Title(), now.State, now.Reason).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
		}

		return now.State == part.Ready, nil
	})
}

// AwaitStopped waits until a stopped plugin has no running instance.
func (s *requests) AwaitStopped(ctx context.Context, id string, only ...part.Only) error {
	return s.await(ctx, id, only, func(g *part.Glance) (bool, error) {
		if !g.Wish.Halts() {
			return false, volume.Errorf(volume.ErrRefused, "%s was started meanwhile", g.Title()).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
		}

		return g.Wish == g.Settled, nil
	})
}

// await waits until ok returns true for every part. It holds no lock while it waits.
func (s *requests) await(ctx context.Context, id string, only []part.Only, ok func(*part.Glance) (bool, error)) error {
	for {
		changed := s.changed(id)
		parts, err := s.selected(id, only)
		if err != nil {
			return volume.Errorf(volume.ErrNotFound, "plugin %q no longer exists: its file was removed or disabled, or it was deregistered", id).WithHint("volctl plugin list")
		}

		var late *supervised
		for i, g := range s.glancesOf(parts) {
			done, err := ok(g)
			if err != nil {
				return err
			}
			if !done && late == nil {
				late = parts[i]
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

		g := s.glance(late)
		msg := fmt.Sprintf("timed out: %s is %s", g.Title(), g.Status.State)
		if g.Status.Reason != "" {
			msg += ": " + g.Status.Reason
		}

		return volume.Errorf(volume.ErrTimeout, "%s", msg).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	}
}
