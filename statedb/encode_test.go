package statedb_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCommitsOfAllSizes checks that a commit stores values of any size and number unchanged.
func TestCommitsOfAllSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 300
	for round, size := range []int{10, 4000, 1, 300} {
		for _, many := range []int{n, 1, 7} {
			do(t, db.Update, func(tx *statedb.Tx) error {
				for i := range many {
					r := lived(i)
					r.Volume.Context = map[string]string{"x": strings.Repeat(fmt.Sprint(round), size+i)}
					tx.PutVolume(r)
				}
				return nil
			})
		}
	}
	want := map[string]volume.Record{}
	for _, r := range db.Volumes() {
		want[r.Volume.ID] = r
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string]volume.Record{}
	for _, r := range open(t, path, statedb.Options{}).Volumes() {
		got[r.Volume.ID] = r
	}
	if len(got) != n {
		t.Fatalf("%d volumes", len(got))
	}
	equal(t, "what was committed", got, want)
}
