package inspect

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
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

// lookAt returns the report about a host whose state database contains one volume.
func lookAt(t *testing.T, r volume.Record) *Report {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db")
	db, err := statedb.Open(file, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *statedb.Tx) error {
		tx.PutNode(statedb.Node{ID: "n1"})
		tx.PutVolume(r)
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}

	in, err := Look(t.Context(), config.Dirs{Data: dir, Runtime: t.TempDir()}, file)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestLook checks that a missing recorded mount appears as a finding in the report, and that InUse
// lists its claim.
func TestLook(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target")
	in := lookAt(t, volume.Record{
		Volume: volume.Volume{ID: "pg", PluginID: "p", Driver: "d", ExternalID: "e"},
		Claims: map[string]volume.Claim{"web": {
			Alloc: "web", State: volume.Mounted, Wanted: true, Target: target, Published: volume.Present, Mount: &volume.MountIdentity{ID: 1, FSType: "ext4"},
		}},
	})
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

// TestLookHold checks that the report and InUse contain a hold on a shared volume without claims and
// without mounts, because no agent would give the hold up.
func TestLookHold(t *testing.T) {
	in := lookAt(t, volume.Record{
		Volume: volume.Volume{ID: "pg", PluginID: "p", Driver: "d", ExternalID: "e", Shared: true},
		Node:   volume.NodeSide{Hold: volume.Hold{State: volume.Present, Operation: "o"}},
	})
	var text, obstacles strings.Builder
	if err := in.Text(&text); err != nil || !strings.Contains(text.String(), "hold in the cluster: present") {
		t.Errorf("%v:\n%s", err, text.String())
	}
	if err := in.InUse(&obstacles); !errors.Is(err, ErrInUse) || obstacles.String() != `volume "pg" is held by this host in its cluster: volctl volume status pg`+"\n" {
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

// TestLookExplains mounts a file system at each kind of path at which a record may have a mount.
// The report must list each of these mounts with its volume. It must report a foreign mount, even
// on the directory of an alloc.
func TestLookExplains(t *testing.T) {
	if os.Getenv(alone) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestLookExplains$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}

	dir := t.TempDir()
	at := func(parts ...string) string {
		return filepath.Join(append([]string{config.MountRoot(dir), "p"}, parts...)...)
	}
	pending := func(alloc string, side volume.Side) volume.Claim {
		return volume.Claim{Alloc: alloc, State: volume.Pending, Wanted: true, Target: at("per-alloc", alloc, "pg"), Published: side}
	}
	claimed := volume.Record{
		Volume: volume.Volume{ID: "pg", PluginID: "p", Driver: "d", ExternalID: "e"},
		Node:   volume.NodeSide{StagingPath: at("staging", "pg")},
		Claims: map[string]volume.Claim{"begun": pending("begun", volume.Unknown), "new": pending("new", volume.Absent)},
	}
	free := volume.Record{
		Volume: volume.Volume{ID: "free", PluginID: "p", Driver: "d", ExternalID: "f"},
		Node: volume.NodeSide{
			StagingPath:  at("staging", "free"),
			Watches:      []volume.Watch{{Path: at("per-alloc", "late", "free"), Alloc: "late"}},
			PendingCalls: []volume.PendingCall{{Kind: call.NodeUnpublish, Path: at("per-alloc", "forced", "free"), Alloc: "forced"}},
			Unseen:       []volume.Unseen{{Path: at("per-alloc", "lazy", "free")}},
		},
	}
	forced := volume.Record{
		Volume: volume.Volume{ID: "forced", PluginID: "p", Driver: "d", ExternalID: "g"}, Leftover: true,
		Node: volume.NodeSide{StagingPath: at("staging", "forced"), Staged: volume.Failed},
	}
	test := &plugin.Scratch{ID: "x", Staging: at("staging", "test"), Targets: []string{at("per-alloc", "test", "v")}, Dirs: []string{at("per-alloc", "test")}}

	file := filepath.Join(dir, "state.db")
	db, err := statedb.Open(file, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *statedb.Tx) error {
		tx.PutVolume(claimed)
		tx.PutVolume(free)
		statedb.Leftovers.Put(tx, statedb.LeftoverOf(forced, time.Now()))
		statedb.Plugins.Put(tx, plugin.Record{ID: "p", Scratch: test})
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}

	foreign := []string{at("per-alloc", "begun"), at("planted")}
	explained := []string{
		at("per-alloc", "begun", "pg"), at("per-alloc", "forced", "free"), at("per-alloc", "late", "free"), at("per-alloc", "lazy", "free"),
		at("per-alloc", "new", "pg"), at("per-alloc", "test", "v"), at("staging", "forced"), at("staging", "free"), at("staging", "pg"), at("staging", "test"),
	}
	for _, path := range slices.Concat(foreign, explained) {
		if err := errors.Join(os.MkdirAll(path, 0o755), syscall.Mount("none", path, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(path, 0) })
	}

	in, err := Look(t.Context(), config.Dirs{Data: dir, Runtime: t.TempDir()}, file)
	if err != nil {
		t.Fatal(err)
	}
	if in.DB != "ok" {
		t.Error(in.DB)
	}
	var text, obstacles strings.Builder
	if err := in.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, path := range explained {
		if !strings.Contains(text.String(), path+"  in doubt (") {
			t.Errorf("%s is not listed", path)
		}
	}
	got := []string{}
	for _, m := range in.Unexplained {
		got = append(got, m.Path)
	}
	if diff := cmp.Diff(foreign, got); diff != "" {
		t.Errorf("unexplained mounts:\n%s\n%s", diff, text.String())
	}
	if err := in.InUse(&obstacles); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	for _, words := range []string{`"free": ` + at("per-alloc", "late", "free") + " is mounted", "volctl plugin test p", "umount " + at("planted")} {
		if !strings.Contains(obstacles.String(), words) {
			t.Errorf("the list of obstacles does not contain %q:\n%s", words, obstacles.String())
		}
	}
}

// alone is an environment variable. It tells this test binary that it runs in a mount namespace of
// its own.
const alone = "INSPECT_TEST_ALONE"
