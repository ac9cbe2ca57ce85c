package process

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// These values decide when the agent returns unused memory to the kernel. A burst of work, such as
// a restart with thousands of claims, needs much memory. Afterwards, Go's garbage collector would
// keep up to twice the memory in use for minutes.
const (
	restFor   = 5 * time.Second
	restBelow = 1 << 20 // the agent is idle if it allocates fewer bytes than this during restFor
	// The agent does not return less than this number of bytes, because the effort would be too
	// high.
	worthIt = 8 << 20
)

// smallHeap is the number of bytes by which the heap may always grow before a collection. Without
// smallHeap, an agent with a few volumes under load would collect its heap of 4 MB many times a
// second. The agent would spend a fifth of its time on these collections.
const smallHeap = 32 << 20

// LoadingMemory lets the heap grow while the agent reads all records at its start. The agent keeps
// these records, so repeated collections would free little memory. After the start, TendMemory sets
// the limit.
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

// gcPercent returns the value to pass to debug.SetGCPercent, if live bytes of the heap are in use.
// The heap may grow by about smallHeap, but at least by 100 percent and at most by 400 percent.
func gcPercent(live uint64) int {
	const most = 400
	return int(min(most, max(100, smallHeap*100/max(live, 1))))
}
