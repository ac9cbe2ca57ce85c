package statedb_test

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

func runtimeVolume(name string) volume.RuntimeVolume {
	return volume.RuntimeVolume{
		Runtime: "docker", Name: name, VolumeID: "v01", CreatedAt: time.Unix(7, 0).UTC(),
		Refs: []volume.RuntimeRef{{ID: "c1", Alloc: "docker", Since: time.Unix(8, 0).UTC()}},
	}
}

// TestRuntimeVolumes checks that the volume of a container runtime is on disk until it is removed.
// A file of a release that could not store such volumes contains none.
func TestRuntimeVolumes(t *testing.T) {
	path := full(t)
	peek(t, path, func(tx *bbolt.Tx) error {
		if tx.Bucket([]byte("runtimes")) == nil {
			return nil
		}
		return tx.DeleteBucket([]byte("runtimes"))
	})
	db := open(t, path, statedb.Options{})
	equal(t, "of an older file", len(statedb.RuntimeVolumes.All(db)), 0)
	podman := runtimeVolume("data")
	podman.Runtime = "podman"
	do(t, db.Update, func(tx *statedb.Tx) error {
		statedb.RuntimeVolumes.Put(tx, runtimeVolume("data"))
		statedb.RuntimeVolumes.Put(tx, podman)
		equal(t, "of the same change", len(statedb.RuntimeVolumes.All(tx)), 2)
		return nil
	})
	if v, ok := statedb.RuntimeVolumes.Get(db, volume.RuntimeKey("docker", "data")); !ok || len(v.Refs) != 1 {
		t.Errorf("docker's is %+v, %t", v, ok)
	}
	do(t, db.Update, func(tx *statedb.Tx) error {
		statedb.RuntimeVolumes.Delete(tx, volume.RuntimeKey("docker", "data"))
		return nil
	})
	again := open(t, copied(t, path), statedb.Options{})
	equal(t, "after one was removed", statedb.RuntimeVolumes.All(again), []volume.RuntimeVolume{podman})
	s, _, err := statedb.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "inspected", statedb.RuntimeVolumes.All(s), []volume.RuntimeVolume{podman})
}

// TestCheckRuntimeVolumes checks that Check finds invalid volumes of container runtimes.
func TestCheckRuntimeVolumes(t *testing.T) {
	path := full(t)
	do(t, open(t, path, statedb.Options{}).Update, func(tx *statedb.Tx) error { statedb.RuntimeVolumes.Put(tx, runtimeVolume("data")); return nil })
	path = copied(t, path)
	peek(t, path, set("runtimes", "x", `{"runtime":"lxc","name":"data","volume_id":"v","refs":[{"id":"a","alloc":"docker"},{"id":"a","alloc":"docker"}]}`))
	err := statedb.Check(path)
	for _, words := range []string{`it is stored under "x"`, `unknown runtime "lxc"`, `reference "a" is stored twice`} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}
