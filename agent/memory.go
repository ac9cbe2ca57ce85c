package agent

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How an agent that has come to rest gives back what a burst of work took, such
// as a restart with thousands of claims. Go's own collector would keep up to
// twice what is in use, for minutes.
const (
	restFor   = 5 * time.Second
	restBelow = 1 << 20 // bytes allocated meanwhile
	worthIt   = 8 << 20 // bytes allocated since the last time
)

// smallHeap is a heap, in bytes, that needs no collecting: with a few volumes
// an agent under load would otherwise collect its 4 MB many times a second, and
// spend a fifth of its time on that.
const smallHeap = 32 << 20

// loadingMemory lets the heap grow while all that is recorded is read: it is
// kept, so to collect it again and again would find little. tendMemory sets what
// holds after that.
func loadingMemory() { debug.SetGCPercent(gcPercent(0)) }

// tendMemory runs until ctx ends.
func tendMemory(ctx context.Context) {
	seen := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	var last, trimmed uint64
	tick := time.NewTicker(restFor)
	defer tick.Stop()
	for {
		metrics.Read(seen)
		now := seen[0].Value.Uint64()
		if now-last < restBelow && now-trimmed > worthIt {
			debug.FreeOSMemory()
			trimmed = now
		}
		last = now
		debug.SetGCPercent(gcPercent(seen[1].Value.Uint64()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// gcPercent is how far the heap may grow beyond the bytes in use: to smallHeap,
// and always to twice as much.
func gcPercent(live uint64) int {
	const most = 400
	return int(min(most, max(100, smallHeap*100/max(live, 1))))
}
