package main_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// BenchmarkClaim claims and detaches directory volumes of the bundled driver
// through the built agent, one volume for each of n callers. Beside the time of
// a whole round it reports the two halves.
func BenchmarkClaim(b *testing.B) {
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("volumes=%d", n), func(b *testing.B) {
			h := newHost(b)
			h.start("local")
			client := apiclient.New(h.socket())
			ctx := context.Background()
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprintf("v%d", i)
				h.volctl("volume", "create", ids[i], "--plugin", "local")
			}
			var mu sync.Mutex
			var claiming, detaching time.Duration
			round := func(id string) error {
				start := time.Now()
				if _, err := client.ClaimVolume(ctx, id, "bench", api.ClaimRequest{}, time.Minute); err != nil {
					return err
				}
				middle := time.Now()
				err := client.ReleaseClaim(ctx, id, "bench", apiclient.ReleaseOptions{Wait: time.Minute})
				mu.Lock()
				claiming, detaching = claiming+middle.Sub(start), detaching+time.Since(middle)
				mu.Unlock()
				return err
			}
			b.ResetTimer()
			var wg sync.WaitGroup
			for i, id := range ids {
				wg.Go(func() {
					for k := i; k < b.N; k += n {
						if err := round(id); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(claiming.Microseconds())/float64(b.N), "claim-µs")
			b.ReportMetric(float64(detaching.Microseconds())/float64(b.N), "detach-µs")
		})
	}
}
