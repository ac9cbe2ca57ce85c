package hold

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// lookWithin limits the time in which a host looks for its own volume in the cluster. The host does
// not depend on the answer.
const lookWithin = 500 * time.Millisecond

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
