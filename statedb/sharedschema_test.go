package statedb_test

import (
	"testing"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestSharedSchema stores a volume of this host and then a shared volume. Only the shared volume raises
// the schema of the file, so that an older agent refuses it. This agent opens the file again.
func TestSharedSchema(t *testing.T) {
	path := full(t)
	stored := func() (raw string) {
		at := copied(t, path)
		open(t, at, statedb.Options{})
		peek(t, copied(t, path), func(tx *bbolt.Tx) error {
			raw = string(tx.Bucket([]byte("meta")).Get([]byte("schema")))
			return nil
		})
		return raw
	}
	put := func(v volume.Volume) {
		db := open(t, path, statedb.Options{})
		do(t, db.Update, func(tx *statedb.Tx) error { tx.PutVolume(volume.Record{Volume: v}); return nil })
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}

	put(volume.Volume{ID: "own", Driver: "d", ExternalID: "own", PluginID: "p"})
	equal(t, "the schema with volumes of the host", stored(), "1")
	put(volume.Volume{ID: "db", Driver: "d", ExternalID: "db", PluginID: "p", Shared: true})
	equal(t, "the schema with a shared volume", stored(), "2")
}
