package state_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestDamagedDatabase starts an agent with a damaged state database. The agent must unmount nothing
// and make no CSI call. It keeps the damaged file, finds the running plugin process, and adopts the
// mounted claims.
func TestDamagedDatabase(t *testing.T) {
	t.Parallel()
	page := os.Getpagesize()
	for name, damage := range map[string]func([]byte) []byte{
		"garbage":               func([]byte) []byte { return []byte(strings.Repeat("no database ", 4096)) },
		"cut short":             func(b []byte) []byte { return b[:page] },
		"no values":             func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`{"`), []byte(`[[`)) },
		"every page but meta":   func(b []byte) []byte { clear(b[2*page:]); return b },
		"not there":             nil,
		"empty, as if made new": func([]byte) []byte { return []byte{} },
	} {
		t.Run(name, func(t *testing.T) { testDamage(t, damage) })
	}
}

func testDamage(t *testing.T, damage func([]byte) []byte) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("shared", "multi-node-single-writer")
	h.Register("solo", "single-node-writer")
	h.Register("free", "single-node-writer")
	path := h.Volctl("volume", "claim", "shared", "--alloc", "rw")
	h.Volctl("volume", "claim", "shared", "--alloc", "ro", "--read-only")
	h.Must(os.Mkdir(filepath.Join(h.Dir, "at"), 0o755))
	h.Volctl("volume", "claim", "solo", "--alloc", "s", "--at", filepath.Join(h.Dir, "at"))
	file := h.StartWriter(path)
	mounts, plugin, since := h.Mounts(), h.PluginPID("rec"), h.Mark()
	h.Kill()

	harness.RemoveCopies(h.Host)
	db := filepath.Join(h.Dir, "d", "state.db")
	raw, err := os.ReadFile(db)
	h.Must(err)
	if damage == nil {
		h.Must(os.Remove(db))
	} else {
		raw = damage(raw)
		h.Must(os.WriteFile(db, raw, 0o600))
	}
	h.OmitFlags = []string{"--node-id"} // without --node-id the agent would use the host name
	h.Start("rec")

	h.ExpectCalls(since)
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	if pid := h.PluginPID("rec"); pid != plugin {
		t.Errorf("the plugin was process %d and is %d", plugin, pid)
	}
	if got, want := h.Claims(), []string{"shared ro adopted", "shared rw adopted", "solo s adopted"}; !slices.Equal(got, want) {
		t.Errorf("claims are %q, want %q", got, want)
	}
	before := harness.FileSize(file)
	h.Await("the writer goes on", func() bool { return harness.FileSize(file) > before })
	kept, err := filepath.Glob(db + ".damaged-*")
	h.Must(err)
	if damage != nil && len(raw) > 0 {
		if len(kept) != 1 {
			t.Fatalf("kept are %q", kept)
		}
		if now, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(now, raw) {
			t.Errorf("what is kept is not what was damaged (%v)", err)
		}
	}
	expectLost(h.Host, kept)

	// Another restart must change nothing. A detach must still end an adopted claim.
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start("rec")
	h.ExpectCalls(since)
	if r := h.Try("volume", "claim", "shared", "--alloc", "w2", "--no-wait"); r.Code != 4 || !strings.Contains(r.Err, "adopted") {
		t.Errorf("a second writer: exit %d, %s", r.Code, r.Err)
	}
	h.Volctl("volume", "detach", "shared", "ro")
	h.ExpectCalls(since, "NodeUnpublishVolume")
	h.Volctl("volume", "detach", "solo", "s")
	h.ExpectCalls(since, "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
	if got := harness.Notes(h.Host); !slices.Equal(got, []string{"shared@rw.json"}) {
		t.Errorf("notes that are left: %q", got)
	}
	for _, path := range kept {
		h.Must(os.Remove(path))
	}
	h.Volctl("volume", "detach", "shared", "rw", "--no-wait")
}

// expectLost asserts that `volctl node status`, the health API and `volctl volume status` report
// the loss of the database.
func expectLost(h *harness.Host, kept []string) {
	h.T.Helper()
	screen := h.Volctl("node", "status")
	health, err := apiclient.New(h.Socket()).Health(h.T.Context())
	h.Must(err)
	if health.DB != "made anew" || len(health.Problems) != 1 || !strings.Contains(screen, health.Problems[0]) {
		h.T.Errorf("health says %+v", health)
	}
	for _, words := range append(kept, "DB made anew", "the state database was lost", "2 volumes with 3 claims") {
		if !strings.Contains(screen, words) {
			h.T.Errorf("node status does not say %q:\n%s", words, screen)
		}
	}
	if id := h.Volctl("node", "status", "-q"); id != "test-host" {
		h.T.Errorf("the node id became %q", id)
	}
	if screen := h.Volctl("volume", "status", "shared"); !strings.Contains(screen, "2 of its claims were adopted") {
		h.T.Errorf("volume status:\n%s", screen)
	}
	if log := h.Volctl("events"); !strings.Contains(log, "volume-adopted") {
		h.T.Errorf("events:\n%s", log)
	}
}

// TestAdoptsOnlyWhatIsThere checks three cases of adoption. If the mounts of a claim are gone, the
// agent adopts the volume but not the claim. A mount without a note stays untouched and blocks new
// claims. A note that the agent cannot read remains on disk.
func TestAdoptsOnlyWhatIsThere(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	target := map[string]string{}
	for _, id := range []string{"gone", "there", "unexplained"} {
		h.Register(id, "single-node-writer")
		target[id] = h.Volctl("volume", "claim", id, "--alloc", "x")
	}
	staged := harness.Decode[api.Volume](h.Host, "volume", "status", "gone").StagingPath
	h.Kill()
	since := h.Mark()
	h.Must(errors.Join(syscall.Unmount(target["gone"], 0), syscall.Unmount(staged, 0)))
	meta := filepath.Join(h.Dir, "d", "csi", "rec", "meta")
	h.Must(os.Rename(filepath.Join(meta, "unexplained@x.json"), filepath.Join(meta, "bad@x.json")))
	h.Must(os.WriteFile(filepath.Join(meta, "half@x.json"), []byte(`{"format":1,"rec`), 0o600))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "d", "state.db"), []byte("nonsense"), 0o600))
	harness.RemoveCopies(h.Host)
	mounts := h.Mounts()
	h.Start("rec")

	if h.Volctl("volume", "list", "-q") != "gone\nthere" {
		t.Errorf("volumes are\n%s", h.Volctl("volume", "list"))
	}
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	// The agent must still undo the calls for the claim whose mounts are gone.
	h.Volctl("wait", "--volume", "gone", "--for", "free", "--timeout", "20s")
	if got := h.Claims(); !slices.Equal(got, []string{"there x adopted"}) {
		t.Errorf("claims are %q", got)
	}
	h.ExpectCalls(since, "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
	if got := harness.Notes(h.Host); !slices.Contains(got, "bad@x.json") || !slices.Contains(got, "half@x.json") {
		t.Errorf("notes that are left: %q", got)
	}
	h.Register("unexplained", "single-node-writer")
	if r := h.Try("volume", "claim", "unexplained", "--alloc", "x", "--timeout", "2s"); r.Code == 0 {
		t.Error("a mount that nobody explains is used")
	}
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	h.Volctl("volume", "detach", "there", "x")
}

// TestAdoptsWhatHangs checks that the agent can adopt a mount whose file system does not respond,
// because the mount table is sufficient to identify the mount.
func TestAdoptsWhatHangs(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("a", "multi-node-multi-writer")
	target := h.Volctl("volume", "claim", "a", "--alloc", "x")
	h.Volctl("volume", "claim", "a", "--alloc", "y")
	h.Kill()
	since := h.Mark()
	// Replace the target's mount by a FUSE file system without a server, and make the note describe
	// this file system.
	h.Must(syscall.Unmount(target, 0))
	fuse, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	h.Must(err)
	h.Must(syscall.Mount("hung", target, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)))
	path := filepath.Join(h.Dir, "d", "csi", "rec", "meta", "a@x.json")
	raw, err := os.ReadFile(path)
	h.Must(err)
	var n volume.Note
	h.Must(json.Unmarshal(raw, &n))
	for line := range strings.Lines(h.Mounts()) {
		if f := strings.Fields(line); f[4] == target {
			n.Claim.Mount.Device, n.Claim.Mount.Root, n.Claim.Mount.FSType = f[2], f[3], "fuse"
		}
	}
	raw, err = json.Marshal(n)
	h.Must(err)
	h.Must(os.WriteFile(path, raw, 0o600))
	h.Must(os.Remove(filepath.Join(h.Dir, "d", "state.db")))
	h.Start("rec")
	if got := h.Claims(); !slices.Equal(got, []string{"a x adopted", "a y adopted"}) {
		t.Errorf("claims are %q", got)
	}
	h.ExpectCalls(since)
	h.Kill()
	h.Must(errors.Join(syscall.Close(fuse), syscall.Unmount(target, 0)))
}

// TestLostElsewhere starts an agent without a state database in a mount namespace that lacks the
// mounts in the notes. The agent must adopt nothing and make no CSI call. The next agent, which
// sees the mounts, must adopt the claims.
func TestLostElsewhere(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("a", "single-node-writer")
	h.Volctl("volume", "claim", "a")
	h.Kill()
	since := h.Mark()
	h.Must(os.Remove(filepath.Join(h.Dir, "d", "state.db")))

	moved := filepath.Join(h.Dir, "e")
	meta := filepath.Join("csi", "rec", "meta")
	h.Must(os.MkdirAll(filepath.Join(moved, meta), 0o711))
	harness.CopyFile(t, filepath.Join(h.Dir, "d", meta, "a@manual.json"), filepath.Join(moved, meta, "a@manual.json"))
	if out := h.StartFails("--data-dir", moved); !strings.Contains(out, "move it back") {
		t.Errorf("a moved data dir: %s", out)
	}

	h.Wrapper = []string{"unshare", "-m", "--propagation", "private"}
	h.Start()
	if screen := h.Volctl("node", "status"); !strings.Contains(screen, "another mount namespace") {
		t.Errorf("node status:\n%s", screen)
	}
	h.Must(h.Signal(syscall.SIGTERM))
	h.Wrapper = nil
	h.Start("rec")
	if got := h.Claims(); !slices.Equal(got, []string{"a manual adopted"}) {
		t.Errorf("claims are %q", got)
	}
	h.ExpectCalls(since)
	h.Volctl("volume", "detach", "a")
}

// TestRefusedDatabase checks that the agent refuses to start with an intact database that it cannot
// use, such as the database of a newer release. The agent must not change the file.
func TestRefusedDatabase(t *testing.T) {
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "a", "--plugin", "local")
	h.Volctl("volume", "claim", "a")
	h.Must(h.Signal(syscall.SIGTERM))
	db := filepath.Join(h.Dir, "d", "state.db")
	raw, err := os.ReadFile(db)
	h.Must(err)
	newer := bytes.Clone(raw)
	h.Must(os.WriteFile(db, newer, 0o600))
	h.Must(bump(db))
	newer, err = os.ReadFile(db)
	h.Must(err)
	if out := h.StartFails(); !strings.Contains(out, "schema 9, this one knows 2") {
		t.Errorf("a newer schema: %s", out)
	}
	if now, err := os.ReadFile(db); err != nil || !bytes.Equal(now, newer) {
		t.Errorf("the newer file was changed (%v)", err)
	}
	h.Must(os.WriteFile(db, raw, 0o600))
	held, err := statedb.Open(db, statedb.Options{})
	h.Must(err)
	if out := h.StartFails(); !strings.Contains(out, "another volagent") {
		t.Errorf("a file that is held: %s", out)
	}
	h.Must(held.Close())
	if kept, err := filepath.Glob(db + ".*"); err != nil || len(kept) > 0 {
		t.Errorf("set aside: %q (%v)", kept, err)
	}
	h.Start("local")
	if got := h.Claims(); !slices.Equal(got, []string{"a manual"}) {
		t.Errorf("claims are %q", got)
	}
}

// bump sets the schema number in a database file to the number of a newer release.
func bump(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes.ReplaceAll(raw, []byte("schema1"), []byte("schema9")), 0o600)
}
