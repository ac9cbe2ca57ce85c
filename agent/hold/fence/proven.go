package fence

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// TakeProven drops the holds of a host that is proven off and that other hosts wait for. It returns their
// volumes. The next pass of this host detaches them.
func (f *Fencer) TakeProven(ctx context.Context, who shared.Asker, host string) []string {
	lost, err := f.wanted(ctx, map[string]shared.Live{})
	if err != nil {
		return nil // the host that cleans up does it
	}

	a := &attempt{Fencer: f, who: who, host: host, wants: lost[host]}
	a.dropProven(ctx, a.wants)
	return a.dropped
}

// dropProven drops the holds of a host that is proven off. The pass that follows detaches the volumes
// before another host gets a hold.
func (a *attempt) dropProven(ctx context.Context, wants []want) {
	for _, w := range wants {
		within := time.Duration(0)
		l, err := a.decideLost(ctx, a.host, w.id, func(l shared.Lost) (shared.Txn, error) {
			v := l.Situation.Volume.Value.Volume
			v.Shared = true
			if within == 0 && l.Situation.Hold.Value.Attachment != "" {
				_, _, within, _ = a.Detacher(ctx, v) // without a controller, the host that has one makes the call later
			}
			return l.DropProven(a.who, deadline(within), now())
		})
		if err != nil {
			a.fail(ctx, w, err)
			continue
		}
		if !l.Situation.Hold.Exists() {
			continue
		}

		a.took(l.Situation.Volume.Value.Volume, fmt.Sprintf("is proven off (%s)", l.Fence.Node.Value.Fencing.Proven))
	}
}
