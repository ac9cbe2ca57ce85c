package hold

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// follow watches the keys of this host until ctx ends. A change of the host's own key or of the
// cluster's key asks for a check of the registration. A hold that vanished is lost.
func (s *Service) follow(ctx context.Context) {
	spans := []shared.Span{{Key: shared.MetaKey}, {Key: shared.NodeKey(s.Node)}, shared.HoldsOf(s.Node)}
	for from := int64(0); ctx.Err() == nil; pause(ctx, time.Second) {
		if from == 0 {
			page, err := s.Store.Range(ctx, spans[0], 1, 0)
			if err != nil {
				continue
			}
			from = page.Revision + 1
			s.registerAgain() // the registration may have changed before this revision
		}

		for evs := range s.Store.Watch(ctx, spans, from) {
			if evs.Err != nil {
				from = 0
				break
			}
			from = max(from, evs.Revision+1)
			s.lag.seen(evs.Revision)
			for _, c := range evs.Changes {
				s.react(ctx, c)
			}
		}
	}
}

// react reacts to one change in the cluster.
func (s *Service) react(ctx context.Context, c shared.Change) {
	_, id, isHold := shared.HoldIDs(c.Key)
	if !isHold {
		s.registerAgain()
		return
	}
	if !c.Deleted {
		return // this host has made the change itself
	}

	r, ok := s.Records.Volume(id)
	if !ok || r.Node.Hold.State != volume.Present || r.Node.Hold.Token.Revision >= c.Mod {
		return
	}
	if s.isEnding(id, r.Node.Hold.Operation) {
		return
	}
	if err := s.lose(ctx, id, r.Node.Hold.Token); err != nil {
		s.Log.Error("cannot store that this host has lost a volume", "volume", id, "error", err)
		s.registerAgain()
	}
}

// setEnding records that this host gives up the hold of an operation itself. An empty operation
// clears the record.
func (s *Service) setEnding(id, operation string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if operation == "" {
		delete(s.ending, id)
		return
	}
	s.ending[id] = operation
}

// isEnding reports whether this host gives up the hold of an operation itself.
func (s *Service) isEnding(id, operation string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.ending[id] == operation
}
