package hold

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// answerWithin limits the time in which this host answers a question.
const answerWithin = 5 * time.Second

// rereadAll gives the records of this host the definitions that the cluster has now. Notices that
// were written before the watch began do not reach this host.
func (s *Service) rereadAll(ctx context.Context) error {
	for _, r := range s.Records.Volumes() {
		if !r.Volume.Shared {
			continue
		}
		if err := s.reread(ctx, r.Volume.ID); err != nil {
			return err
		}
	}

	return nil
}

// reread gives the record of this host the definition that the cluster has now.
func (s *Service) reread(ctx context.Context, id string) error {
	p, err := s.readPlace(ctx, volume.Volume{ID: id})
	if err != nil {
		return err
	}
	return s.refresh(ctx, p)
}

// noticed reacts to a change of the definition of a volume that some host uses.
func (s *Service) noticed(ctx context.Context, id string) {
	if r, ok := s.Records.Volume(id); !ok || !r.Volume.Shared {
		return
	}
	if err := s.reread(ctx, id); err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot read the changed definition of a volume; the next claim reads it again", "volume", id, "error", err)
	}
}

// answer answers the question of another host whether this host uses a storage volume on its own.
func (s *Service) answer(ctx context.Context, kv shared.KV) {
	q, err := shared.Decode[shared.Question](kv)
	if err != nil || q.Value.Node == s.Node {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	a := shared.Answer{Volume: s.Uses(q.Value.Driver, q.Value.ExternalID)}
	_, err = shared.DoSure(ctx, s.Store, shared.Txn{
		If:   []shared.Compare{shared.Unchanged(kv)},
		Then: []shared.Op{shared.PutLeased(shared.AnswerKey(q.Value.ID, s.Node), shared.Entry[shared.Answer]{}.Encode(a), kv.Lease)},
	})
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot answer the question of another host about a volume", "host", q.Value.Node, "volume", q.Value.Volume, "error", err)
	}
}
