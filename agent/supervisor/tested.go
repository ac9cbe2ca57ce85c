package supervisor

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// tests serves the tests of plugins.
type tests struct{ *requests }

// Scratch returns the objects that a test of a plugin may have left; nil if there are none. Callers
// must not change it.
func (s *tests) Scratch(id string) *volume.Scratch {
	for _, p := range s.of(id) {
		if left := p.record.get().Scratch; left != nil {
			return left
		}
	}
	return nil
}

// SaveScratch durably stores the objects that a test may leave; nil means none. If there are
// several parts, the record of one part holds them.
func (s *tests) SaveScratch(ctx context.Context, id string, left *volume.Scratch) error {
	parts := s.of(id)
	if len(parts) == 0 {
		return unknown(id)
	}

	keeper := max(0, slices.IndexFunc(parts, func(p *plugin) bool { return p.record.get().Scratch != nil }))
	return parts[keeper].record.save(ctx, func(r *volume.PluginRecord) { r.Scratch = left })
}

// MayKill returns an error if this agent may not end the plugin's process.
func (s *tests) MayKill(id string) error {
	parts := s.of(id)
	if len(parts) == 0 {
		return unknown(id)
	}
	return ours(parts[0], s.glance(parts[0]), "kill")
}

// Kill ends a plugin's process with SIGKILL, as a crash would. If there are several parts, it ends
// the node part. Kill is refused while a volume other than own is in use through the plugin. A
// volume that comes into use meanwhile waits for the next process.
func (s *tests) Kill(id, own string) error {
	if err := s.MayKill(id); err != nil {
		return err
	}

	parts := s.of(id)
	if len(parts) == 0 {
		return unknown(id)
	}

	p := parts[0]
	defer s.notify(p) // a waiter may have seen the plugin blocked

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

// killed sends the signal, unless another process has replaced that one.
func killed(p *plugin, pid int, key string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only used to send the signal

	// The comparison is safe only now that the pidfd holds the process: a process that is published
	// was alive, or not reaped yet, when the pid was read.
	if g := p.look(); g.PID != pid || g.Key != key {
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q ended by itself", p.id)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}

	return nil
}
