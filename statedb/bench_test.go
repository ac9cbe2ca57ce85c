package statedb_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/volagent/volagent/statedb"
)

// BenchmarkUpdate is what a durable change costs, alone and when many want one
// at a time, in a database of 1,000 volumes.
func BenchmarkUpdate(b *testing.B) {
	for _, writers := range []int{1, 128} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			db := filled(b, 1000)
			before := db.Commits()
			var n atomic.Int64
			b.SetParallelism(writers) // times GOMAXPROCS
			b.ResetTimer()
			update := func(i int64) {
				id := fmt.Sprintf("v%d", i%1000)
				if err := db.Update(context.Background(), func(tx *statedb.Tx) error {
					r, _ := tx.Volume(id)
					r.Node.Seq++
					tx.PutVolume(r)
					return nil
				}); err != nil {
					b.Error(err)
				}
			}
			if writers == 1 {
				for i := range b.N {
					update(int64(i))
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						update(n.Add(1))
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
			b.ReportMetric(float64(db.Commits()-before)/float64(b.N), "commits/update")
		})
	}
}

// BenchmarkCheckpoint is what a change costs that waits for no commit.
func BenchmarkCheckpoint(b *testing.B) {
	db := filled(b, 1000)
	for i := 0; b.Loop(); i++ {
		r, _ := db.Volume(fmt.Sprintf("v%d", i%1000))
		r.Node.Seq++
		if err := db.Checkpoint(context.Background(), put(r)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is what a restart reads.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		b.Fatal(err)
	}
	addVolumes(b, db, 1000)
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := db.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func filled(b *testing.B, n int) *statedb.DB {
	b.Helper()
	db, _ := fresh(b, statedb.Options{})
	addVolumes(b, db, n)
	return db
}

func addVolumes(b *testing.B, db *statedb.DB, n int) {
	b.Helper()
	do(b, db.Update, func(tx *statedb.Tx) error {
		for i := range n {
			tx.PutVolume(record(fmt.Sprintf("v%d", i), "a"))
		}
		return nil
	})
}
