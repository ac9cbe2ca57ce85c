package load_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// BenchmarkLoadOneVolume claims and detaches one volume while other allocs have 2, and then 3 000,
// claims on the same volume. It compares the processor time that the agent uses. The cost of a
// claim must not grow with the number of existing claims.
func BenchmarkLoadOneVolume(b *testing.B) {
	const few, many, rounds = 2, 3000, 150
	r := newRig(b, &loadPlugin{})
	r.startReady()
	spec := api.VolumeSpec{
		ID: "shared", PluginID: "load", ExternalID: "shared",
		Capabilities: []api.Capability{{AccessMode: "single-node-multi-writer", AttachmentMode: "file-system"}},
	}
	_, err := r.api.RegisterVolume(context.Background(), spec, false)
	r.Must(err)
	claim := func(alloc string) error {
		_, err := r.api.ClaimVolume(context.Background(), "shared", alloc, api.ClaimRequest{}, loadWait)
		return err
	}
	release := func(alloc string) error {
		return r.api.DetachClaim(context.Background(), "shared", alloc, apiclient.DetachOptions{Wait: loadWait})
	}
	held := 0
	cost := map[int]time.Duration{}
	for _, level := range []int{few, many} {
		r.drive(level-held, 8, func(i int) error { return claim(fmt.Sprintf("holder-%d", held+i)) })
		held = level
		r.Must(claim("one"))
		r.Must(release("one")) // fill connections and caches before the measurement
		before := r.cpu()
		for range rounds * b.N {
			r.Must(claim("one"))
			r.Must(release("one"))
		}
		cost[level] = (r.cpu() - before) / time.Duration(rounds*b.N)
		b.ReportMetric(micros(cost[level]), fmt.Sprintf("agent-cpu-µs/round-at-%d", level))
	}
	verdict(b, "one volume, processor time of a claim and its release at 3 000 claims", float64(cost[many])/float64(cost[few])/2,
		"%s, at most twice the %s at 2", round(cost[many]), round(cost[few]))
	r.end()
}
