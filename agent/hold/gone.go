package hold

import (
	"context"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// goneCalls remembers since when the executors of announced calls are gone. Each host counts with its
// own clock, which does not depend on the clocks of other hosts.
type goneCalls struct {
	mu   sync.Mutex
	seen map[string]goneSince // by volume
}

// goneSince is the first moment at which this host has seen that the executor of a call is gone.
type goneSince struct {
	call, live int64 // revisions of both keys
	at         time.Time
}

// goneCall returns the call of another host or of an earlier agent that a new call may replace. It
// returns nil if there is no such call, or if its executor is alive. It returns an error while the
// call may still have an effect.
func (d Definitions) goneCall(ctx context.Context, c volume.StorageCall) (*shared.GoneCall, error) {
	res, err := d.Store.Do(ctx, shared.Txn{Then: []shared.Op{shared.Get(shared.CallKey(c.Volume))}})
	if err != nil {
		d.noteError(err)
		return nil, d.cannotLook(c.Volume, err)
	}
	if len(res.Reads[0]) == 0 {
		return nil, nil
	}

	var g shared.GoneCall
	if g.Call, err = shared.Decode[shared.Call](res.Reads[0][0]); err != nil || g.Call.Value.Executor == d.Node {
		return nil, err
	}

	kv := shared.KV{Key: shared.LiveKey(g.Call.Value.Executor)}
	if res, err = d.Store.Do(ctx, shared.Txn{Then: []shared.Op{shared.Get(kv.Key)}}); err != nil {
		d.noteError(err)
		return nil, d.cannotLook(c.Volume, err)
	}
	if len(res.Reads[0]) > 0 {
		kv = res.Reads[0][0]
	}
	if g.Live, err = shared.Decode[shared.Live](kv); err != nil || !g.Ended() {
		return nil, err
	}

	since := d.gone.since(c.Volume, g)
	if left := c.Deadline - time.Since(since); left > 0 {
		return nil, volume.Errorf(volume.ErrRefused, "host %q was calling %s for volume %q when it stopped, and the call may still have an effect for %s",
			g.Call.Value.Executor, g.Call.Value.Call, c.Volume, left.Round(time.Second)).WithHint("repeat the command after that time")
	}
	return &g, nil
}

// since returns the first moment at which this host has seen that the executor of a call is gone.
func (g *goneCalls) since(id string, c shared.GoneCall) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()

	now := goneSince{call: c.Call.Mod, live: c.Live.Mod, at: time.Now()}
	if had, ok := g.seen[id]; ok && had.call == now.call && had.live == now.live {
		return had.at
	}
	g.seen[id] = now
	return now.at
}
