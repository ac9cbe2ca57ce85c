package hold

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
)

// These constants limit how often a host writes its status: at most once in statusEvery, and without
// a request after statusAtLeast, if the plugins have reported something new.
const (
	statusEvery   = time.Second
	statusAtLeast = 30 * time.Second
)

// statusChanged asks for a new status of this host in the cluster.
func (s *publisher) statusChanged() {
	select {
	case s.changed <- struct{}{}:
	default: // the last request was not served yet
	}
}

// tellStatus writes the status of this host when it has changed, until ctx ends.
func (s *publisher) tellStatus(ctx context.Context) {
	var told *shared.Status // the status that the cluster shows; nil if unknown
	for ctx.Err() == nil {
		now := s.Status()
		if told == nil || !told.Same(now) {
			told = nil
			if err := s.writeStatus(ctx, now); err == nil {
				told = &now
			}
		}

		backoff.Pause(ctx, statusEvery)
		select {
		case <-s.changed:
		case <-time.After(statusAtLeast):
		case <-ctx.Done():
		}
	}
}

// writeStatus writes the status of this host, after all other writes.
func (s *publisher) writeStatus(ctx context.Context, now shared.Status) error {
	leave, err := s.lanes.enter(ctx, statuses)
	if err != nil {
		return err
	}
	defer leave()

	who, err := s.Asker()
	if err != nil {
		return err
	}
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.TellingReads(s.Node)})
	if err != nil {
		return err
	}
	telling, err := shared.ParseTelling(s.Node, res.Reads)
	if err != nil {
		return err
	}

	txn, err := telling.Tell(who, now)
	if err != nil || len(txn.Then) == 0 {
		return err
	}
	res, err = s.Store.Do(ctx, txn)
	if err == nil && !res.Done {
		s.statusChanged() // another write has changed a key, so the next turn tries again
	}
	return err
}
