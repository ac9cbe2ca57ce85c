package statedb_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

const benchBoot = "0d8a3c1e-6a0f-4a55-9d5e-6f2f4c6f7a10"

// lived returns a record as a running agent stores it. The volume is staged and is published for
// one claim.
func lived(i int) volume.Record {
	id := fmt.Sprintf("volume-%05d", i)
	at := time.Unix(1_790_000_000, int64(i)*1_000_003).UTC()
	mode := call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}
	mount := func(unique uint64) *volume.MountIdentity {
		return &volume.MountIdentity{
			Namespace: 4026531841, Boot: benchBoot, Device: fmt.Sprintf("0:%d", 50+i), Root: "/", FSType: "tmpfs", ID: 2_147_483_648 + unique,
		}
	}
	alloc := fmt.Sprintf("alloc-%05d", i)
	root := "/var/lib/volagent/csi/load/"
	return volume.Record{
		Volume: volume.Volume{
			ID: id, Name: id, PluginID: "load", Driver: "load.csi.example.org", ExternalID: "ext-" + id,
			Capabilities: []call.Capability{mode}, RegisteredAt: at,
		},
		Node: volume.NodeSide{
			Mode: &volume.Mode{Capability: mode}, Uses: volume.Uses{Stage: true}, Staged: volume.Present,
			StagingPath: root + "staging/" + id, Mount: mount(uint64(2 * i)), Boot: benchBoot, Seq: 1,
		},
		Claims: map[string]volume.Claim{alloc: {
			Alloc: alloc, Seq: 1, Wanted: true, State: volume.Mounted, Terms: volume.Terms{Mode: mode, Owner: volume.Owner{Kind: volume.OwnerNone}}, Since: at,
			Target: root + "per-alloc/" + alloc + "/" + id, Published: volume.Present, Mount: mount(uint64(2*i + 1)),
		}},
	}
}

// live makes a database file with n records from lived, and returns its path.
func live(b *testing.B, n int) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		b.Fatal(err)
	}
	// live uses several commits, so that the pages are as full as in an agent's database.
	for i := 0; i < n; i += 1000 {
		do(b, db.Update, func(tx *statedb.Tx) error {
			for j := i; j < min(i+1000, n); j++ {
				tx.PutVolume(lived(j))
			}
			return nil
		})
	}
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkOpenLive measures how long a restarted agent reads the file before it can answer
// requests.
func BenchmarkOpenLive(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("claims=%d", n), func(b *testing.B) {
			path := live(b, n)
			b.ReportAllocs()
			for b.Loop() {
				db, err := statedb.Open(path, statedb.Options{})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if got := len(db.Volumes()); got != n {
					b.Fatalf("%d volumes, not %d", got, n)
				}
				if err := db.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
