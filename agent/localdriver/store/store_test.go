package store

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// FuzzState opens a state directory whose metadata files have arbitrary contents. The driver may
// use a volume, a snapshot or a group only under its own id, and must keep the data of all others.
func FuzzState(f *testing.F) {
	const vol, snap, member, grp = "vol-aaaaaaaaaaaaaaaa", "snap-bbbbbbbbbbbbbbbb", "snap-cccccccccccccccc", "grp-dddddddddddddddd"
	seed := func(v, s, g any) {
		var raw [3][]byte
		for i, x := range []any{v, s, g} {
			text, err := json.Marshal(x)
			sandbox.Must(f, err)
			raw[i] = text
		}
		f.Add(raw[0], raw[1], raw[2])
	}
	v := Volume{Version: MetaVersion, ID: vol, Name: "n", Type: TypeDirectory}
	s := Snapshot{Version: MetaVersion, ID: snap, Name: "s", Source: vol, Type: TypeImage}
	g := Group{Version: MetaVersion, ID: grp, Name: "g", Snapshots: []Snapshot{{Version: MetaVersion, ID: member, Group: grp, Type: TypeDirectory}}}
	seed(v, s, g)
	other, stolen := s, g
	other.ID = "snap-../../../../etc"
	stolen.Snapshots = []Snapshot{{Version: MetaVersion, ID: snap, Group: grp, Type: TypeDirectory}}
	seed(Volume{Version: 2, ID: vol}, other, stolen)
	seed(Volume{Version: 1, ID: vol, Type: TypeImage, Capacity: -1}, []int{1}, Group{Version: 1, ID: grp, Snapshots: []Snapshot{other}})
	seed(nil, "x", map[string]any{"snapshots": []any{nil}})
	f.Add([]byte("{"), []byte(""), []byte("[[[["))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, v, s, g []byte) {
		for path, raw := range map[string][]byte{filepath.Join(DirVolumes, vol, MetaFile): v, filepath.Join(DirSnapshots, snap, SnapFile): s, filepath.Join(DirGroups, grp, groupFile): g} {
			path = filepath.Join(dir, path)
			sandbox.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, raw, 0o600)))
		}
		st, err := Open(t.Context(), dir, hclog.NewNullLogger())
		sandbox.Must(t, err)
		defer func() { sandbox.Must(t, st.Close()) }()
		if _, err := st.Get(vol); errors.Is(err, ErrNoVolume) {
			t.Error("the volume is neither there nor broken")
		}
		checkState(t, st)
	})
}

// checkState checks the objects in a store, and the paths of their data.
func checkState(t *testing.T, st *Store) {
	t.Helper()
	inside := func(path string) bool { return strings.HasPrefix(path, st.Root+"/") && filepath.Clean(path) == path }
	for id, v := range st.byID {
		if v.ID != id || !ValidID(id) || !inside(st.DataPath(v)) || v.Type != TypeDirectory && v.Type != TypeImage {
			t.Errorf("volume %q is %+v", id, v)
		}
	}
	for id, s := range st.snaps {
		_, grouped := st.groups[s.Group]
		if s.ID != id || !ValidIDOf(SnapPrefix, id) || !inside(st.SnapshotData(s)) || s.Group != "" && !grouped {
			t.Errorf("snapshot %q is %+v", id, s)
		}
	}
	for id, g := range st.groups {
		for _, s := range g.Snapshots {
			if st.snaps[s.ID].Group != id {
				t.Errorf("snapshot %q of group %q is %+v", s.ID, id, st.snaps[s.ID])
			}
		}
	}
	for _, s := range st.ListSnapshots() {
		_ = s.CSI()
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if !ValidID(id) || seen[id] {
			t.Fatalf("%q is not valid or not new", id)
		}
		seen[id] = true
	}
}
