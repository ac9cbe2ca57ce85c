package inspect

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCompare checks the description of a mount for each combination of a recorded and a present
// mount.
func TestCompare(t *testing.T) {
	recorded := &volume.MountIdentity{ID: 1, FSType: "ext4"}
	for _, tt := range []struct {
		name       string
		seen       volume.Sight
		recorded   *volume.MountIdentity
		is, fsType string
	}{
		{"nothing at all", volume.Sight{Seen: volume.SeenNothing}, nil, "", ""},
		{"only seen", volume.Sight{Seen: volume.SeenMount, Identity: volume.MountIdentity{ID: 2, FSType: "xfs"}}, nil, inDoubt, "xfs"},
		{"only recorded", volume.Sight{Seen: volume.SeenNothing}, recorded, "missing", "ext4"},
		{"both", volume.Sight{Seen: volume.SeenMount, Identity: *recorded}, recorded, asRecorded, "ext4"},
		{"another one", volume.Sight{Seen: volume.SeenMount, Identity: volume.MountIdentity{ID: 3, FSType: "xfs"}}, recorded, "another mount", "ext4"},
		{"dead", volume.Sight{Seen: volume.SeenDead, Detail: "its server is gone"}, recorded, string(volume.SeenDead) + ": its server is gone", "ext4"},
	} {
		if is, fsType := compare(tt.seen, tt.recorded); is != tt.is || fsType != tt.fsType {
			t.Errorf("%s: %q, %q, want %q, %q", tt.name, is, fsType, tt.is, tt.fsType)
		}
	}
}

// TestLook checks that a missing recorded mount appears as a finding in the report, and that InUse
// lists its claim.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db")
	db, err := statedb.Open(file, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "target")
	err = db.Update(t.Context(), func(tx *statedb.Tx) error {
		tx.PutNode(statedb.Node{ID: "n1"})
		tx.PutVolume(volume.Record{
			Volume: volume.Volume{ID: "pg", PluginID: "p", Driver: "d", ExternalID: "e"},
			Claims: map[string]volume.Claim{"web": {
				Alloc: "web", State: volume.Mounted, Wanted: true, Target: target, Published: volume.Present, Mount: &volume.MountIdentity{ID: 1, FSType: "ext4"},
			}},
		})
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}

	in, err := Look(t.Context(), config.Dirs{Data: dir, Runtime: t.TempDir()}, file)
	if err != nil {
		t.Fatal(err)
	}
	if in.DB != "ok" || in.AgentRunning || in.NodeID != "n1" {
		t.Errorf("%+v", in)
	}
	if len(in.Findings) != 1 || !strings.Contains(in.Findings[0], target+" (published for web) is missing") {
		t.Errorf("findings: %q", in.Findings)
	}
	var text, obstacles strings.Builder
	if err := in.Text(&text); err != nil || !strings.Contains(text.String(), `claim of "web"  mounted`) {
		t.Errorf("%v:\n%s", err, text.String())
	}
	if err := in.InUse(&obstacles); !errors.Is(err, ErrInUse) || !strings.Contains(obstacles.String(), "volctl volume detach pg web") {
		t.Errorf("%v:\n%s", err, obstacles.String())
	}
}

// TestLookWithoutDatabase checks the report for a host without a state database. The report must
// contain a finding, and InUse must list nothing.
func TestLookWithoutDatabase(t *testing.T) {
	dir := t.TempDir()
	in, err := Look(t.Context(), config.Dirs{Data: dir, Runtime: dir}, filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	var obstacles strings.Builder
	if err := in.InUse(&obstacles); in.DB == "ok" || len(in.Findings) != 1 || err != nil || obstacles.Len() != 0 {
		t.Errorf("%+v: %v: %s", in, err, obstacles.String())
	}
}
