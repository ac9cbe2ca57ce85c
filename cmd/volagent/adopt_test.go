package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// notes returns the file names of all claim notes on the host. The agent can adopt these claims.
func (h *host) notes() []string {
	h.t.Helper()
	found, err := filepath.Glob(filepath.Join(h.dir, "d", "csi", "*", "meta", "*"))
	h.must(err)
	for i, path := range found {
		found[i] = filepath.Base(path)
	}
	return found
}

// decode runs volctl with -o json and returns the decoded output.
func decode[T any](h *host, args ...string) (v T) {
	h.t.Helper()
	h.must(json.Unmarshal([]byte(h.volctl(append(args, "-o", "json")...)), &v))
	return v
}

// claims returns all claims as "volume alloc remark", sorted.
func (h *host) claims() (got []string) {
	h.t.Helper()
	for _, c := range decode[[]api.Claim](h, "claim", "list") {
		got = append(got, strings.TrimSpace(c.Volume+" "+c.Alloc+" "+c.Remark))
	}
	slices.Sort(got)
	return got
}

// TestDamagedDatabase checks that an agent with a damaged state database loses no data. The agent
// starts, unmounts nothing and sends no CSI call. It keeps the damaged file, finds the running
// plugin process, and adopts the mounted claims.
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
	h := newRecorded(t, "10s", nil)
	h.register("shared", "multi-node-single-writer")
	h.register("solo", "single-node-writer")
	h.register("free", "single-node-writer")
	path := h.volctl("volume", "claim", "shared", "--alloc", "rw")
	h.volctl("volume", "claim", "shared", "--alloc", "ro", "--read-only")
	h.must(os.Mkdir(filepath.Join(h.dir, "at"), 0o755))
	h.volctl("volume", "claim", "solo", "--alloc", "s", "--at", filepath.Join(h.dir, "at"))
	file := h.writer(path)
	mounts, plugin, since := h.mounts(), h.pluginPID("rec"), h.mark()
	h.kill()

	h.forgetCopies()
	db := filepath.Join(h.dir, "d", "state.db")
	raw, err := os.ReadFile(db)
	h.must(err)
	if damage == nil {
		h.must(os.Remove(db))
	} else {
		raw = damage(raw)
		h.must(os.WriteFile(db, raw, 0o600))
	}
	h.flags = []string{"--node-id"} // without --node-id the agent would use the host name
	h.start("rec")

	h.expect(since)
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	if pid := h.pluginPID("rec"); pid != plugin {
		t.Errorf("the plugin was process %d and is %d", plugin, pid)
	}
	if got, want := h.claims(), []string{"shared ro adopted", "shared rw adopted", "solo s adopted"}; !slices.Equal(got, want) {
		t.Errorf("claims are %q, want %q", got, want)
	}
	before := size(file)
	h.await("the writer goes on", func() bool { return size(file) > before })
	kept, err := filepath.Glob(db + ".damaged-*")
	h.must(err)
	if damage != nil && len(raw) > 0 {
		if len(kept) != 1 {
			t.Fatalf("kept are %q", kept)
		}
		if now, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(now, raw) {
			t.Errorf("what is kept is not what was damaged (%v)", err)
		}
	}
	h.saysLost(kept)

	// A second restart changes nothing. A detach still ends an adopted claim.
	h.must(h.signal(syscall.SIGTERM))
	h.start("rec")
	h.expect(since)
	if r := h.try("volume", "claim", "shared", "--alloc", "w2", "--no-wait"); r.code != 4 || !strings.Contains(r.err, "adopted") {
		t.Errorf("a second writer: exit %d, %s", r.code, r.err)
	}
	h.volctl("volume", "detach", "shared", "ro")
	h.expect(since, "NodeUnpublishVolume")
	h.volctl("volume", "detach", "solo", "s")
	h.expect(since, "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
	if got := h.notes(); !slices.Equal(got, []string{"shared@rw.json"}) {
		t.Errorf("notes that are left: %q", got)
	}
	for _, path := range kept {
		h.must(os.Remove(path))
	}
	h.volctl("volume", "detach", "shared", "rw", "--no-wait")
}

// TestKilledWhileAdopting kills an agent before or after the commit in which the agent adopts
// claims. The next agent must find and adopt all of these claims.
func TestKilledWhileAdopting(t *testing.T) {
	for at, when := range []string{1: "before the commit", 2: "after it"} {
		if when == "" {
			continue
		}
		t.Run(when, func(t *testing.T) {
			h := newRecorded(t, "10s", nil)
			h.register("a", "single-node-writer")
			h.volctl("volume", "claim", "a")
			h.kill()
			since := h.mark()
			db := filepath.Join(h.dir, "d", "state.db")
			h.must(os.WriteFile(db, []byte("nonsense"), 0o600))
			told := filepath.Join(h.dir, "told")
			h.must(os.Mkdir(told, 0o700))
			raw, err := json.Marshal(order{Run: 1, At: at, Agent: true, Commits: true})
			h.must(err)
			h.must(os.WriteFile(filepath.Join(told, "order"), raw, 0o600))
			cmd := exec.Command("/proc/self/exe", h.args()...)
			cmd.Env, cmd.Stderr = append(h.env, crashEnv+"="+told), h.log
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the agent ended with %v", err)
			}
			h.start("rec")
			if got := h.claims(); !slices.Equal(got, []string{"a manual adopted"}) {
				t.Errorf("claims are %q", got)
			}
			kept, err := filepath.Glob(db + ".damaged-*")
			h.must(err)
			if screen := h.volctl("node", "status"); len(kept) != 1 || !strings.Contains(screen, kept[0]) {
				t.Errorf("kept are %q; node status:\n%s", kept, screen)
			}
			h.expect(since)
			h.volctl("volume", "detach", "a")
		})
	}
}

// saysLost asserts that `volctl node status`, the health API and `volctl volume status` report the
// lost database.
func (h *host) saysLost(kept []string) {
	h.t.Helper()
	screen := h.volctl("node", "status")
	health, err := apiclient.New(h.socket()).Health(h.t.Context())
	h.must(err)
	if health.DB != "made anew" || len(health.Problems) != 1 || !strings.Contains(screen, health.Problems[0]) {
		h.t.Errorf("health says %+v", health)
	}
	for _, words := range append(kept, "DB made anew", "the state database was lost", "2 volumes with 3 claims") {
		if !strings.Contains(screen, words) {
			h.t.Errorf("node status does not say %q:\n%s", words, screen)
		}
	}
	if id := h.volctl("node", "status", "-q"); id != "test-host" {
		h.t.Errorf("the node id became %q", id)
	}
	if screen := h.volctl("volume", "status", "shared"); !strings.Contains(screen, "2 of its claims were adopted") {
		h.t.Errorf("volume status:\n%s", screen)
	}
	if log := h.volctl("events"); !strings.Contains(log, "volume-adopted") {
		h.t.Errorf("events:\n%s", log)
	}
}

// TestAdoptsOnlyWhatIsThere checks three cases. If the mounts of a claim are gone, the agent adopts
// the volume but not the claim. A mount without a note stays untouched and blocks new claims. A
// note that the agent cannot read stays in its directory.
func TestAdoptsOnlyWhatIsThere(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	target := map[string]string{}
	for _, id := range []string{"gone", "there", "unexplained"} {
		h.register(id, "single-node-writer")
		target[id] = h.volctl("volume", "claim", id, "--alloc", "x")
	}
	staged := decode[api.Volume](h.host, "volume", "status", "gone").StagingPath
	h.kill()
	since := h.mark()
	h.must(errors.Join(syscall.Unmount(target["gone"], 0), syscall.Unmount(staged, 0)))
	meta := filepath.Join(h.dir, "d", "csi", "rec", "meta")
	h.must(os.Rename(filepath.Join(meta, "unexplained@x.json"), filepath.Join(meta, "bad@x.json")))
	h.must(os.WriteFile(filepath.Join(meta, "half@x.json"), []byte(`{"format":1,"rec`), 0o600))
	h.must(os.WriteFile(filepath.Join(h.dir, "d", "state.db"), []byte("nonsense"), 0o600))
	h.forgetCopies()
	mounts := h.mounts()
	h.start("rec")

	if h.volctl("volume", "list", "-q") != "gone\nthere" {
		t.Errorf("volumes are\n%s", h.volctl("volume", "list"))
	}
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	// The agent still makes the undo calls for the claim whose mounts are gone.
	h.volctl("wait", "--volume", "gone", "--for", "free", "--timeout", "20s")
	if got := h.claims(); !slices.Equal(got, []string{"there x adopted"}) {
		t.Errorf("claims are %q", got)
	}
	h.expect(since, "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
	if got := h.notes(); !slices.Contains(got, "bad@x.json") || !slices.Contains(got, "half@x.json") {
		t.Errorf("notes that are left: %q", got)
	}
	h.register("unexplained", "single-node-writer")
	if r := h.try("volume", "claim", "unexplained", "--alloc", "x", "--timeout", "2s"); r.code == 0 {
		t.Error("a mount that nobody explains is used")
	}
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	h.volctl("volume", "detach", "there", "x")
}

// TestAdoptsWhatHangs checks that the agent adopts a mount whose file system does not answer. The
// agent needs only the mount table to identify the mount.
func TestAdoptsWhatHangs(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("a", "multi-node-multi-writer")
	target := h.volctl("volume", "claim", "a", "--alloc", "x")
	h.volctl("volume", "claim", "a", "--alloc", "y")
	h.kill()
	since := h.mark()
	// Replace the target's mount by a FUSE file system without a server. Change the note to
	// describe this file system.
	h.must(syscall.Unmount(target, 0))
	fuse, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	h.must(err)
	h.must(syscall.Mount("hung", target, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)))
	path := filepath.Join(h.dir, "d", "csi", "rec", "meta", "a@x.json")
	raw, err := os.ReadFile(path)
	h.must(err)
	var n volume.Note
	h.must(json.Unmarshal(raw, &n))
	for line := range strings.Lines(h.mounts()) {
		if f := strings.Fields(line); f[4] == target {
			n.Claim.Mount.Device, n.Claim.Mount.Root, n.Claim.Mount.FSType = f[2], f[3], "fuse"
		}
	}
	raw, err = json.Marshal(n)
	h.must(err)
	h.must(os.WriteFile(path, raw, 0o600))
	h.must(os.Remove(filepath.Join(h.dir, "d", "state.db")))
	h.start("rec")
	if got := h.claims(); !slices.Equal(got, []string{"a x adopted", "a y adopted"}) {
		t.Errorf("claims are %q", got)
	}
	h.expect(since)
	h.kill()
	h.must(errors.Join(syscall.Close(fuse), syscall.Unmount(target, 0)))
}

// TestLostElsewhere starts an agent in a mount namespace without the mounts that the notes
// describe. The agent adopts nothing and sends no CSI call. A later agent that sees these mounts
// adopts the claims.
func TestLostElsewhere(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("a", "single-node-writer")
	h.volctl("volume", "claim", "a")
	h.kill()
	since := h.mark()
	h.must(os.Remove(filepath.Join(h.dir, "d", "state.db")))

	moved := filepath.Join(h.dir, "e")
	meta := filepath.Join("csi", "rec", "meta")
	h.must(os.MkdirAll(filepath.Join(moved, meta), 0o711))
	copyFile(t, filepath.Join(h.dir, "d", meta, "a@manual.json"), filepath.Join(moved, meta, "a@manual.json"))
	if out := h.refuse("--data-dir", moved); !strings.Contains(out, "move it back") {
		t.Errorf("a moved data dir: %s", out)
	}

	h.wrap = []string{"unshare", "-m", "--propagation", "private"}
	h.start()
	if screen := h.volctl("node", "status"); !strings.Contains(screen, "another mount namespace") {
		t.Errorf("node status:\n%s", screen)
	}
	h.must(h.signal(syscall.SIGTERM))
	h.wrap = nil
	h.start("rec")
	if got := h.claims(); !slices.Equal(got, []string{"a manual adopted"}) {
		t.Errorf("claims are %q", got)
	}
	h.expect(since)
	h.volctl("volume", "detach", "a")
}

// TestRefusedDatabase checks that the agent refuses to start with a database that is intact but
// unusable, such as the database of a newer release. The agent does not change the file.
func TestRefusedDatabase(t *testing.T) {
	h := newHost(t)
	h.start("local")
	h.volctl("volume", "create", "a", "--plugin", "local")
	h.volctl("volume", "claim", "a")
	h.must(h.signal(syscall.SIGTERM))
	db := filepath.Join(h.dir, "d", "state.db")
	raw, err := os.ReadFile(db)
	h.must(err)
	newer := bytes.Clone(raw)
	h.must(os.WriteFile(db, newer, 0o600))
	h.must(bump(db))
	newer, err = os.ReadFile(db)
	h.must(err)
	if out := h.refuse(); !strings.Contains(out, "schema 9, this one knows 1") {
		t.Errorf("a newer schema: %s", out)
	}
	if now, err := os.ReadFile(db); err != nil || !bytes.Equal(now, newer) {
		t.Errorf("the newer file was changed (%v)", err)
	}
	h.must(os.WriteFile(db, raw, 0o600))
	held, err := statedb.Open(db, statedb.Options{})
	h.must(err)
	if out := h.refuse(); !strings.Contains(out, "another volagent") {
		t.Errorf("a file that is held: %s", out)
	}
	h.must(held.Close())
	if kept, err := filepath.Glob(db + ".*"); err != nil || len(kept) > 0 {
		t.Errorf("set aside: %q (%v)", kept, err)
	}
	h.start("local")
	if got := h.claims(); !slices.Equal(got, []string{"a manual"}) {
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
