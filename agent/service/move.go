package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Mover moves shared volumes between the hosts of a cluster.
type Mover interface {
	Move(ctx context.Context, id, to string, within time.Duration) (shared.Moved, error)
}

// moveWithin is the time for a move if the caller names none.
const moveWithin = 80 * time.Second

// Move moves a shared volume from the host that holds it to another host. It waits until the holder has
// given the volume up, for at most the duration wait.
func (c Cluster) Move(ctx context.Context, by Caller, id string, req api.MoveRequest, wait time.Duration) (api.Moved, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Moved{}, err
	}
	if err := c.check(); err != nil {
		return api.Moved{}, err
	}
	if err := volume.CheckID("volume id", id); err != nil {
		return api.Moved{}, asAPI(err)
	}
	if req.Host == "" {
		return api.Moved{}, asAPI(volume.Errorf(volume.ErrInvalid, "the move of a volume needs the name of a host").WithHint("volctl node list"))
	}
	if r, ok := c.records.Volume(id); ok && !r.Volume.Shared {
		return api.Moved{}, asAPI(volume.Errorf(volume.ErrRefused, "volume %q is a volume of this host alone", id).WithHint("only shared volumes can move; see volctl volume share"))
	}
	if wait <= 0 {
		wait = moveWithin
	}

	m, err := c.mover.Move(ctx, id, req.Host, wait)
	out := api.Moved{Volume: id, From: m.From, To: m.To, Taken: m.Taken}
	if m.Reserved > 0 {
		out.ReservedFor = m.Reserved.String()
	}
	return out, asAPI(err)
}
