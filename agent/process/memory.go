package process

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// These limits decide when an idle agent returns the memory of a burst of work to the kernel. A
// restart with thousands of claims is such a burst. Go's own collector would keep up to twice the
// memory in use for minutes.
const (
	restFor   = 5 * time.Second
	restBelow = 1 << 20 // in bytes; an agent that allocates less during restFor is idle
	// In bytes; below this amount, returning memory to the kernel is not worth the effort.
	worthIt = 8 << 20
)

// smallHeap is the growth of the heap, in bytes, that needs no collection. Without smallHeap, an
// agent with a few volumes under load would collect its heap of 4 MB many times a second. The agent
// would spend a fifth of its time on these collections.
const smallHeap = 32 << 20

// LoadingMemory lets the heap grow while the agent reads all records. The agent keeps these
// records, so repeated collections would free little. TendMemory sets the limit for the time after
// the start.
func LoadingMemory() { debug.SetGCPercent(gcPercent(0)) }

// TendMemory adapts the memory limits and returns unused memory to the kernel, until ctx ends.
func TendMemory(ctx context.Context) {
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

// gcPercent returns how far the heap may grow, as a percentage of live. live is the number of bytes
// in use. The heap may grow by about smallHeap, but by at least 100 and at most 400 percent.
func gcPercent(live uint64) int {
	const most = 400
	return int(min(most, max(100, smallHeap*100/max(live, 1))))
}
