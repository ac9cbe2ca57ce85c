package supervisor

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// Scratch is what a test of a plugin may have left; nil is nothing. It must not be
// changed.
func (s *Supervisor) Scratch(id string) *volume.Scratch {
	for _, p := range s.parts(id) {
		if left := p.record().Scratch; left != nil {
			return left
		}
	}
	return nil
}

// SaveScratch stores durably what a test may leave; nil is nothing. Of several
// parts one keeps it.
func (s *Supervisor) SaveScratch(ctx context.Context, id string, left *volume.Scratch) error {
	parts := s.parts(id)
	if len(parts) == 0 {
		return unknown(id)
	}
	keeper := max(0, slices.IndexFunc(parts, func(p *plugin) bool { return p.record().Scratch != nil }))
	return parts[keeper].save(ctx, func(r *volume.PluginRecord) { r.Scratch = left })
}

// MayKill refuses where the plugin's process is not this agent's to end.
func (s *Supervisor) MayKill(id string) error {
	parts := s.parts(id)
	if len(parts) == 0 {
		return unknown(id)
	}
	return parts[0].ours("kill")
}

// Kill ends a plugin's process with SIGKILL, as a crash would; of several parts that
// of the node. It is refused while anything but own is in use through the plugin;
// what comes into use meanwhile waits for the next process.
func (s *Supervisor) Kill(id, own string) error {
	if err := s.MayKill(id); err != nil {
		return err
	}
	parts := s.parts(id)
	if len(parts) == 0 {
		return unknown(id)
	}
	p := parts[0]
	defer s.notify(p) // somebody may have seen the door closed, and wait
	s.doors.Lock()
	defer s.doors.Unlock()
	ask(parts[:1], 1)
	defer ask(parts[:1], -1)
	others := slices.DeleteFunc(s.inUse(id), func(v string) bool { return v == own })
	if len(others) > 0 {
		return volume.Errorf(volume.ErrRefused, "volume %q is in use through plugin %q", others[0], id)
	}
	p.mu.Lock()
	pid, key := p.pid, p.key
	p.mu.Unlock()
	if pid == 0 {
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q has no process", id)
	}
	return p.killed(pid, key)
}

// killed sends the signal, unless another process has taken that one's place.
func (p *plugin) killed(pid int, key string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only used to send
	// Only now that the pidfd holds the process is the comparison safe: what is
	// published was alive, or not reaped yet, when it was looked at.
	p.mu.Lock()
	same := p.pid == pid && p.key == key
	p.mu.Unlock()
	if !same {
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q ended by itself", p.id)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	return nil
}
