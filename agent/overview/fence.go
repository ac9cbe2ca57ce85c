package overview

import (
	"context"
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Hooks asks the fence hooks of this host.
type Hooks interface {
	// Off switches a host off. It returns the name of the hook that then reported the host as off.
	Off(ctx context.Context, host string, m shared.Machine) (hook string, err error)

	// On gives a host its access to the storage back. It returns the names of the hooks that did so.
	On(ctx context.Context, host string, m shared.Machine) (hooks []string, err error)

	// Status returns the answer of each hook about a host, for people.
	Status(ctx context.Context, host string, m shared.Machine) (answers []string, err error)
}

// Fence records the statement of a person that a host is switched off. It returns the proof, and the volumes
// that other hosts waited for and that it has taken from the host.
func (s *Service) Fence(ctx context.Context, host, who, reason string) (p shared.Proof, taken []string, err error) {
	if strings.TrimSpace(reason) == "" {
		return p, nil, volume.Errorf(volume.ErrInvalid, "the fencing of a host needs a reason").WithHint("--reason 'the power supply burnt'")
	}
	ask, err := s.Member.Asker()
	if err != nil {
		return p, nil, err
	}

	if _, err := s.decideFence(ctx, host, func(f shared.Fence) (shared.Txn, error) { return f.Declare(ask, who, reason, s.Now().UTC()) }); err != nil {
		return p, nil, err
	}
	taken = s.TakeProven(ctx, ask, host)
	f, err := shared.ReadFence(ctx, s.Store, s.Node, host)
	s.Replaced()
	return f.Proof.Value, taken, err
}

// decideFence executes a decision about the fencing of a host.
func (s *Service) decideFence(ctx context.Context, host string, by func(shared.Fence) (shared.Txn, error)) (shared.Fence, error) {
	return shared.Decide(ctx, s.Store, host, func(ctx context.Context) (shared.Fence, error) {
		return shared.ReadFence(ctx, s.Store, s.Node, host)
	}, by)
}

// Unfence gives a host its access to the storage back. It refuses that while the host may have volumes
// mounted that it has lost. It returns the hooks that were asked.
func (s *Service) Unfence(ctx context.Context, host string) (hooks []string, err error) {
	ask, err := s.Member.Asker()
	if err != nil {
		return nil, err
	}
	f, err := shared.ReadFence(ctx, s.Store, s.Node, host)
	if err != nil {
		return nil, err
	}
	if err := f.CheckUnfence(ask); err != nil {
		return nil, err
	}
	hooks, err = s.Hooks.On(ctx, host, f.Node.Value.Machine)
	if err != nil {
		return nil, volume.Errorf(volume.ErrRefused, "a fence hook has failed: %v", err).WithHint("see docs/fence-hooks.md")
	}
	return hooks, nil
}

// FenceTest asks the hooks of this host for the state of another host. If off is set, it switches the host
// off. It then refuses a host that holds volumes, because a test must not interrupt their users.
func (s *Service) FenceTest(ctx context.Context, host string, off bool) (answers []string, err error) {
	f, err := shared.ReadFence(ctx, s.Store, s.Node, host)
	if err != nil {
		return nil, err
	}
	if !f.Node.Exists() {
		return nil, missing(host)
	}
	if !off {
		answers, err = s.Hooks.Status(ctx, host, f.Node.Value.Machine)
		if err != nil {
			return nil, volume.Errorf(volume.ErrRefused, "the fence hooks of this host do not know the state of host %q: %v", host, err).WithHint("see docs/fence-hooks.md")
		}
		return answers, nil
	}

	if host == s.Node {
		return nil, volume.Errorf(volume.ErrRefused, "host %q is this host; run the test on another host", host)
	}
	holds, err := s.holdsOf(ctx, host)
	if err != nil {
		return nil, err
	}
	if len(holds) > 0 {
		return nil, volume.Errorf(volume.ErrRefused, "host %q holds %d shared volumes, such as %q", host, len(holds), holds[0].Volume).WithHint("drain the host first; run on it: volctl node drain")
	}
	if len(f.Node.Value.Quarantined) > 0 {
		return nil, volume.Errorf(volume.ErrRefused, "host %q has volume %q mounted, which it has lost", host, f.Node.Value.Quarantined[0]).WithHint("end the processes on that host that use the volume")
	}

	hook, err := s.Hooks.Off(ctx, host, f.Node.Value.Machine)
	if err != nil {
		return nil, volume.Errorf(volume.ErrRefused, "no hook has switched host %q off: %v", host, err).WithHint("see docs/fence-hooks.md")
	}
	return []string{fmt.Sprintf("hook %s has switched host %s off, and reports that it is off", hook, host)}, nil
}
