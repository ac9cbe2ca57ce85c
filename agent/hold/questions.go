package hold

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// askWithin limits the wait for the answers of the other hosts.
const askWithin = 5 * time.Second

// Ask asks every registered host whether it uses the storage of a volume on its own. It refuses if a
// host does, or does not answer. It returns the id of the question, which EndQuestion removes.
func (s *keys) Ask(ctx context.Context, v volume.Volume) (string, error) {
	s.mu.Lock()
	lease := s.lease
	s.mu.Unlock()

	q := shared.Question{ID: rand.Text(), Node: s.Node, Volume: v.ID, Driver: v.Driver, ExternalID: v.ExternalID}
	_, err := s.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if p.Question.Exists() && p.Question.Value.ID == q.ID {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}
		return p.Ask(who, q, lease)
	})
	if err != nil {
		return "", err
	}
	if err := s.awaitAnswers(ctx, q); err != nil {
		s.EndQuestion(ctx, v, q.ID)
		return "", err
	}

	return q.ID, nil
}

// awaitAnswers waits for the answers of all hosts to a question.
func (s *keys) awaitAnswers(ctx context.Context, q shared.Question) error {
	wait, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()

	nodes, err := s.Store.Range(ctx, shared.Nodes(), 0, 0)
	if err != nil {
		return s.cannotLook(q.Volume, err)
	}

	for {
		page, err := s.Store.Range(ctx, shared.Answers(q.ID), 0, 0)
		if err != nil {
			return s.cannotLook(q.Volume, err)
		}

		silent, err := missingAnswers(q, nodes.KVs, page.KVs)
		if err != nil || len(silent) == 0 {
			return err
		}
		if wait.Err() != nil {
			return volume.Errorf(volume.ErrRefused, "host %s has not answered whether it uses external_id %q of driver %s on its own",
				strings.Join(silent, ", host "), q.ExternalID, q.Driver).
				WithHint("start the agent there, or share the volume without the answers: %s", suggest.Command("volctl volume share %s --force", q.Volume))
		}

		s.awaitEvent(wait, []shared.Span{shared.Answers(q.ID)}, page.Revision+1)
	}
}

// missingAnswers returns the hosts that have not answered yet. It returns an error that names a host
// which uses the storage on its own.
func missingAnswers(q shared.Question, nodes, answers []shared.KV) (silent []string, err error) {
	given := map[string]bool{q.Node: true}
	for _, kv := range answers {
		node, _ := shared.LastID(kv.Key)
		a, err := shared.Decode[shared.Answer](kv)
		if err != nil {
			return nil, err
		}
		if a.Value.Volume != "" {
			return nil, volume.Errorf(volume.ErrRefused, "host %q uses the same external_id %q of driver %s as its own volume %q",
				node, q.ExternalID, q.Driver, a.Value.Volume).WithHint("deregister the volume on that host first")
		}
		given[node] = true
	}

	for _, kv := range nodes {
		if node, ok := shared.LastID(kv.Key); ok && !given[node] {
			silent = append(silent, node)
		}
	}
	return silent, nil
}

// EndQuestion removes a question with its answers. If the cluster is not reachable, the question ends
// with the lease of this host.
func (s *keys) EndQuestion(ctx context.Context, v volume.Volume, id string) {
	_, err := s.change(context.WithoutCancel(ctx), v, func(_ shared.Asker, p shared.Place) (shared.Txn, error) {
		return p.EndQuestion(id), nil
	})
	if err != nil {
		s.Log.Debug("cannot remove a question from the cluster", "volume", v.ID, "error", err)
	}
}
