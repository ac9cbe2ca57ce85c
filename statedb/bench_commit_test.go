package statedb_test

import (
	"fmt"
	"testing"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// BenchmarkCommit measures one commit that changes some of 512 volumes with one claim each. Some
// runs change only the claims, as a mount does. The other runs also change the records. The figures
// ns/op and write-ns/commit depend on the disk. The other figures do not.
func BenchmarkCommit(b *testing.B) {
	const volumes = 512
	for _, n := range []int{1, 8, 32} {
		for _, what := range []string{"records", "claims"} {
			b.Run(fmt.Sprintf("%s=%d", what, n), func(b *testing.B) {
				db := open(b, live(b, volumes), statedb.Options{})
				before := db.Written()
				next := 0
				b.ReportAllocs()
				for b.Loop() {
					do(b, db.Update, func(tx *statedb.Tx) error {
						for range n {
							next = (next + 97) % volumes // so the changed volumes are not adjacent
							r, _ := tx.Volume(fmt.Sprintf("volume-%05d", next))
							tx.PutVolume(touched(r, what == "records"))
						}
						return nil
					})
				}
				after := db.Written()
				b.ReportMetric(float64(after.Pages-before.Pages)/float64(b.N), "pages/commit")
				b.ReportMetric(float64(after.Bytes-before.Bytes)/float64(b.N), "bytes/commit")
				b.ReportMetric(float64((after.Took-before.Took).Nanoseconds())/float64(b.N), "write-ns/commit")
			})
		}
	}
}

// touched returns the record with changed claims. If all is set, touched also changes the record
// itself.
func touched(r volume.Record, all bool) volume.Record {
	claims := make(map[string]volume.Claim, len(r.Claims))
	for alloc, c := range r.Claims {
		c.Since = c.Since.Add(1)
		claims[alloc] = c
	}
	r.Claims = claims
	if all {
		r.Node.Seq++
	}
	return r
}
