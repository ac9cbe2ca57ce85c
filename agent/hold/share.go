package hold

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// askWithin limits the wait for the answers of the other hosts.
const askWithin = 5 * time.Second

// lookWithin limits the time in which a host looks for its own volume in the cluster. The host does
// not depend on the answer.
const lookWithin = 500 * time.Millisecond

// Ask asks every registered host whether it uses the storage of a volume on its own. It refuses if a
// host does, or does not answer. It returns the id of the question, which EndQuestion removes.
func (d Definitions) Ask(ctx context.Context, v volume.Volume) (string, error) {
	d.mu.Lock()
	lease := d.lease
	d.mu.Unlock()

	q := shared.Question{ID: rand.Text(), Node: d.Node, Volume: v.ID, Driver: v.Driver, ExternalID: v.ExternalID}
	_, err := d.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if p.Question.Exists() && p.Question.Value.ID == q.ID {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}
		return p.Ask(who, q, lease)
	})
	if err != nil {
		return "", err
	}
	if err := d.awaitAnswers(ctx, q); err != nil {
		d.EndQuestion(ctx, v, q.ID)
		return "", err
	}

	return q.ID, nil
}

// awaitAnswers waits for the answers of all hosts to a question.
func (d Definitions) awaitAnswers(ctx context.Context, q shared.Question) error {
	wait, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()

	nodes, err := d.Store.Range(ctx, shared.Nodes(), 0, 0)
	if err != nil {
		return d.cannotLook(q.Volume, err)
	}

	for {
		page, err := d.Store.Range(ctx, shared.Answers(q.ID), 0, 0)
		if err != nil {
			return d.cannotLook(q.Volume, err)
		}

		silent, err := missingAnswers(q, nodes.KVs, page.KVs)
		if err != nil || len(silent) == 0 {
			return err
		}
		if wait.Err() != nil {
			return volume.Errorf(volume.ErrRefused, "cannot share volume %q: host %s has not answered whether it uses external_id %q of driver %s on its own",
				q.Volume, strings.Join(silent, ", host "), q.ExternalID, q.Driver).
				WithHint("start the agent there, or share the volume without the answers: %s", suggest.Command("volctl volume share %s --force", q.Volume))
		}

		d.awaitEvent(wait, []shared.Span{shared.Answers(q.ID)}, page.Revision+1)
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
			return nil, volume.Errorf(volume.ErrRefused, "cannot share volume %q: host %q uses the same external_id %q of driver %s as its own volume %q",
				q.Volume, node, q.ExternalID, q.Driver, a.Value.Volume).WithHint("deregister the volume on that host first")
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
func (d Definitions) EndQuestion(ctx context.Context, v volume.Volume, id string) {
	_, err := d.change(context.WithoutCancel(ctx), v, func(_ shared.Asker, p shared.Place) (shared.Txn, error) {
		return p.EndQuestion(id), nil
	})
	if err != nil {
		d.Log.Debug("cannot remove a question from the cluster", "volume", v.ID, "error", err)
	}
}

// Share makes a volume of this host a shared volume. If h is not nil, this host gets the hold in the
// same transaction, and Share returns its token. The hold is attached to the given CSI node id, which
// is empty for a volume without an attachment.
func (d Definitions) Share(ctx context.Context, v volume.Volume, h *volume.Hold, nodeID, question string) (token volume.Token, err error) {
	_, err = d.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if sameVolume(p, v) {
			if h != nil {
				token, _ = p.Shared(h.Operation)
			}
			return shared.Txn{}, nil // an earlier Share has done it
		}
		return p.Share(who, v, holdFor(h, who, nodeID), question)
	})
	if err == nil && h != nil {
		token, err = d.token(ctx, v, h.Operation)
	}
	return token, err
}

// token returns the token of the hold that Share has made.
func (d Definitions) token(ctx context.Context, v volume.Volume, operation string) (volume.Token, error) {
	p, err := d.readPlace(ctx, v)
	if err != nil {
		return volume.Token{}, d.cannotLook(v.ID, err)
	}
	if token, ok := p.Shared(operation); ok {
		return token, nil
	}
	return volume.Token{}, volume.Errorf(volume.ErrRefused, "the cluster has volume %q, but not the hold of this host on it", v.ID)
}

// holdFor returns the hold that a host gets by Share.
func holdFor(h *volume.Hold, who shared.Asker, nodeID string) *shared.Hold {
	if h == nil {
		return nil
	}

	out := &shared.Hold{Access: h.Access, Reader: h.Reader, Operation: h.Operation, Incarnation: who.Incarnation, Since: h.Since}
	if nodeID != "" {
		out.Attachment, out.NodeID = shared.Attached, nodeID
	}
	return out
}

// sameVolume reports whether the cluster has exactly the given volume.
func sameVolume(p shared.Place, v volume.Volume) bool {
	had := volume.Record{Volume: p.Volume.Value.Volume}
	return p.Volume.Exists() && had.Same(volume.Record{Volume: v})
}

// Unshare removes a volume from the cluster. It refuses a volume that another host uses, and a volume
// whose definition has changed since it was read. The parameter operation names the hold of this
// host, or is empty.
func (d Definitions) Unshare(ctx context.Context, v volume.Volume, operation string) error {
	if operation != "" {
		d.setEnding(v.ID, operation)
	}
	_, err := d.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if p.Doubt && !p.Volume.Exists() {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}
		if now := (volume.Record{Volume: p.Shown().Volume}); p.Volume.Exists() && !now.SameDefinition(volume.Record{Volume: v}) {
			return shared.Txn{}, volume.Errorf(volume.ErrRefused, "another host has changed volume %q meanwhile", v.ID).WithRemedy(remedy.Of(remedy.UnshareVolume, v.ID))
		}
		return p.Unshare(who, operation)
	})

	var refused *volume.Error
	if errors.As(err, &refused) && operation != "" {
		d.setEnding(v.ID, "") // the host keeps the hold, and may lose it
	}
	return err
}

// CheckOwn refuses storage that this host is about to use on its own, if the cluster has it or is
// about to share it. If the cluster does not answer, CheckOwn permits the use.
func (d Definitions) CheckOwn(ctx context.Context, v volume.Volume) error {
	who, err := d.Asker()
	if err != nil {
		return nil // a volume of this host does not depend on the cluster
	}

	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()

	p, err := d.readPlace(ctx, v)
	if err != nil {
		return nil // as above
	}
	return p.Elsewhere(who)
}

// heldBy returns the hold of this host on a volume, or an empty one.
func heldBy(p shared.Place) volume.Hold {
	if !p.Hold.Exists() {
		return volume.Hold{}
	}
	return shared.HoldOf(p.Hold, p.Meta.Value.Epoch)
}
