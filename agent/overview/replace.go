package overview

import (
	"context"
	"errors"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Replace records that the machine behind the name of a host is gone, and drops the holds of the
// host. It returns the volumes whose hold it has dropped. If it stops in the middle, another call
// continues on any host.
func (s *Service) Replace(ctx context.Context, host, who, reason string) (dropped []string, err error) {
	if strings.TrimSpace(reason) == "" {
		return nil, volume.Errorf(volume.ErrInvalid, "the replacement of a host needs a reason").WithHint("--reason 'the mainboard is dead'")
	}
	if host == s.Node {
		return nil, volume.Errorf(volume.ErrRefused, "host %q is this host, and its agent is alive", host).WithHint("volctl node drain")
	}

	ask, err := s.Member.Asker()
	if err != nil {
		return nil, err
	}

	begun, err := s.decide(ctx, host, func(r shared.Replacement) (shared.Txn, error) {
		return r.Begin(ask, shared.Proof{Who: who, Reason: reason, At: s.Now().UTC()})
	})
	if err != nil {
		return nil, stopped(host, err)
	}

	holds, err := s.holdsOf(ctx, host)
	if err != nil {
		return nil, stopped(host, err)
	}
	for _, h := range holds {
		if begun, err = s.decide(ctx, host, func(r shared.Replacement) (shared.Txn, error) {
			sit, err := s.situation(ctx, host, h.Volume)
			if err != nil {
				return shared.Txn{}, err
			}
			return r.Drop(ask, sit, s.Now().UTC())
		}); err != nil {
			return begun.Proof.Value.Volumes, stopped(host, err)
		}
	}

	_, err = s.decide(ctx, host, func(r shared.Replacement) (shared.Txn, error) {
		begun = r
		return r.End(ask, s.Now().UTC())
	})
	if err == nil {
		s.Replaced()
	}
	return begun.Proof.Value.Volumes, stopped(host, err)
}

// stopped adds to an error of the store that the replacement can be continued.
func stopped(host string, err error) error {
	if err == nil || !errors.Is(err, shared.ErrUnreachable) {
		return err
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "the replacement of host %q has stopped: %v", host, err).
		WithRemedy(remedy.Of(remedy.ReplaceNode, host))
}

// decide executes a decision about a replacement. If the keys change meanwhile, it decides again.
func (s *Service) decide(ctx context.Context, host string, by func(shared.Replacement) (shared.Txn, error)) (shared.Replacement, error) {
	return shared.Decide(ctx, s.Store, host, func(ctx context.Context) (shared.Replacement, error) { return s.replacement(ctx, host) }, by)
}

// replacement reads the keys that decide about a replacement.
func (s *Service) replacement(ctx context.Context, host string) (shared.Replacement, error) {
	for incarnation := uint64(0); ; {
		reads, err := s.read(ctx, shared.ReplacementReads(s.Node, host, incarnation)...)
		if err != nil {
			return shared.Replacement{}, err
		}
		r, complete, err := shared.ParseReplacement(s.Node, host, incarnation, reads)
		if err != nil || complete {
			return r, err
		}
		incarnation = r.Node.Value.Incarnation
	}
}

// situation reads the keys about a volume as the replaced host would.
func (s *Service) situation(ctx context.Context, host, id string) (shared.Situation, error) {
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.Reads(host, id)})
	if err != nil {
		return shared.Situation{}, err
	}
	return shared.ParseSituation(host, id, res)
}
