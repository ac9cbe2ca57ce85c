package statedb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
)

// BenchmarkUpdate measures a durable change in a database of 1,000 volumes. It uses one writer, and
// then many concurrent writers.
func BenchmarkUpdate(b *testing.B) {
	for _, writers := range []int{1, 128} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			db := filled(b, 1000)
			before := db.Commits()
			var n atomic.Int64
			b.SetParallelism(writers) // testing multiplies this number by GOMAXPROCS
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

// BenchmarkSave measures a change that does not wait for a commit.
func BenchmarkSave(b *testing.B) {
	db := filled(b, 1000)
	for i := 0; b.Loop(); i++ {
		r, _ := db.Volume(fmt.Sprintf("v%d", i%1000))
		r.Node.Seq++
		if err := saveNext(db)(context.Background(), put(r)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSteps measures the writes that one claim causes while 32 writers run. Each claim makes
// one update, and three saves for which no caller waits.
func BenchmarkSteps(b *testing.B) {
	db := filled(b, 1000)
	var n atomic.Int64
	b.SetParallelism(16) // testing multiplies this number by GOMAXPROCS
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, _ := db.Volume(fmt.Sprintf("v%d", n.Add(1)%1000))
			if err := db.Update(context.Background(), put(r)); err != nil {
				b.Error(err)
			}
			for range 3 {
				if err := saveNext(db)(context.Background(), put(r)); err != nil {
					b.Error(err)
				}
			}
		}
	})
}

// BenchmarkOpen measures the time that a restarted agent needs to read the file.
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

// BenchmarkLoadUpdates compares the throughput of many writers with the time of one commit in the
// same run.
func BenchmarkLoadUpdates(b *testing.B) {
	const volumes, writers, alone, together = 1000, 128, 2000, 100_000
	db := filled(b, volumes)
	update := func(i int) error {
		id := fmt.Sprintf("v%d", i%volumes)
		return db.Update(context.Background(), func(tx *statedb.Tx) error {
			r, _ := tx.Volume(id)
			r.Node.Seq++
			tx.PutVolume(r)
			return nil
		})
	}
	for range b.N {
		took := make([]time.Duration, alone)
		for i := range alone {
			start := time.Now()
			if err := update(i); err != nil {
				b.Fatal(err)
			}
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		commit := took[alone/2]
		before, start := db.Commits(), time.Now()
		var next atomic.Int64
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for i := next.Add(1); i <= together; i = next.Add(1) {
					if err := update(int(i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		elapsed := time.Since(start)
		rate := together / elapsed.Seconds()
		b.ReportMetric(float64(commit.Nanoseconds())/1000, "commit-µs")
		b.ReportMetric(1/commit.Seconds(), "updates/s-1")
		b.ReportMetric(rate, "updates/s-128")
		b.ReportMetric(float64(db.Commits()-before)/elapsed.Seconds(), "commits/s-128")
		want := 20000 * min(1, 250e-6/commit.Seconds())
		verdict(b, "statedb, updates/s of 128 writers", want/rate, "%.0f with a commit of %s, at least %.0f", rate, commit.Round(time.Microsecond), want)
	}
}

// verdict reports whether a benchmark reached a required figure. It uses the output format of the
// load tool in cmd/volagent/test/load. The parameter short is the required figure divided by the
// measured figure.
func verdict(b *testing.B, what string, short float64, format string, args ...any) {
	b.Helper()
	word := map[bool]string{true: "PASS", false: "FAIL"}[short <= 1]
	if short > 2 {
		word = "MISS"
	}
	line := fmt.Sprintf("%s  %s: %s\n", word, what, fmt.Sprintf(format, args...))
	path := os.Getenv("VOLAGENT_BENCH_VERDICTS")
	if path == "" {
		path = "/dev/stderr"
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = f.WriteString(line)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		b.Error(err)
	}
}
