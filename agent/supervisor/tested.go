package supervisor

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// tests serves the command that tests a plugin.
type tests struct{ *requests }

// Scratch returns the objects that a test of the plugin may have left, or nil if there are none.
// Callers must not change the result.
func (s *tests) Scratch(id string) *plugin.Scratch {
	for _, p := range s.of(id) {
		if left := p.record.get().Scratch; left != nil {
			return left
		}
	}
	return nil
}

// SaveScratch stores which objects a test of the plugin may leave, and waits until they are on
// disk. The value nil means none. If the plugin has several parts, the record of only one part
// contains the objects.
func (s *tests) SaveScratch(ctx context.Context, id string, left *plugin.Scratch) error {
	parts := s.of(id)
	if len(parts) == 0 {
		return unknown(id)
	}

	keeper := max(0, slices.IndexFunc(parts, func(p *supervised) bool { return p.record.get().Scratch != nil }))
	return parts[keeper].record.save(ctx, func(r *plugin.Record) { r.Scratch = left })
}

// MayKill returns an error if this agent may not end the plugin's process.
func (s *tests) MayKill(id string) error {
	parts := s.of(id)
	if len(parts) == 0 {
		return unknown(id)
	}
	return ours(parts[0], s.glance(parts[0]), "kill")
}

// Kill ends a plugin's process with SIGKILL, to simulate a crash. If the plugin has several parts,
// Kill ends the node part. Kill returns an error while any volume except own is in use through the
// plugin. If a volume starts to use the plugin during the call, the volume waits for the next
// process.
func (s *tests) Kill(id, own string) error {
	if err := s.MayKill(id); err != nil {
		return err
	}

	parts := s.of(id)
	if len(parts) == 0 {
		return unknown(id)
	}

	p := parts[0]
	defer s.notify(p) // a caller that found new calls blocked waits for this notification

	s.doors.Lock()
	defer s.doors.Unlock()

	block(parts[:1], 1)
	defer block(parts[:1], -1)

	others := slices.DeleteFunc(s.inUse(id), func(v string) bool { return v == own })
	if len(others) > 0 {
		return volume.Errorf(volume.ErrRefused, "volume %q is in use through plugin %q", others[0], id)
	}

	g := p.look()
	if g.PID == 0 {
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q has no process", id)
	}

	return killed(p, g.PID, g.Key)
}

// killed sends SIGKILL to a process, unless another process has replaced it.
func killed(p *supervised, pid int, key string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	// closing cannot lose data, because nothing is written to a pidfd
	defer func() { _ = unix.Close(fd) }()

	// Compare only after the pidfd was opened, because the pid cannot be reused from then on. If
	// the part still reports the same process, the pidfd belongs to it.
	if g := p.look(); g.PID != pid || g.Key != key {
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q ended by itself", p.id)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}

	return nil
}
