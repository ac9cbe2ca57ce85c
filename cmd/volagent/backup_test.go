package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/csitest"
)

// backup creates a backup and returns its file name.
func (h *host) backup() string {
	h.t.Helper()
	file := filepath.Join(h.dir, "backup")
	h.exits(0, "secrets.key", "state", "backup", file, "--force")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		h.t.Fatalf("the backup is %v, %v", info, err)
	}
	return file
}

// restored restores the state from a file. It returns the answer and the outcome for each restored
// item.
func (h *host) restored(code int, file string, args ...string) (r api.Restore, outcomes map[string]string) {
	h.t.Helper()
	res := h.exits(code, "", append([]string{"state", "restore", file, "-o", "json"}, args...)...)
	h.must(json.Unmarshal([]byte(res.out), &r))
	outcomes = map[string]string{}
	for _, i := range r.Items {
		outcomes[i.Kind+" "+i.ID] = i.Outcome
	}
	return r, outcomes
}

// lose kills the agent and removes its state and its notes. The mounts remain.
func (h *host) lose() {
	h.t.Helper()
	h.kill()
	meta, err := filepath.Glob(filepath.Join(h.dir, "d", "csi", "*", "meta", "*"))
	h.must(err)
	for _, path := range append(meta, filepath.Join(h.dir, "d", "state.db"), filepath.Join(h.dir, "d", "state.log")) {
		h.must(os.Remove(path))
	}
	h.forgetCopies()
}

// TestRestoreHere checks that an agent that lost its state can restore its own backup. Mounted
// volumes stay mounted and are not mounted again. The agent detaches claims whose owners have
// ended. The plugin receives the sealed secrets. A second restore changes nothing.
func TestRestoreHere(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.must(os.WriteFile(filepath.Join(h.dir, "data.yaml"), []byte("id: data\nplugin_id: rec\nexternal_id: ext/data\nsecrets: {password: pl4nt3d-l1t3r4l}\n"), 0o600))
	h.volctl("volume", "register", filepath.Join(h.dir, "data.yaml"))
	for _, id := range []string{"live", "past", "free", "back"} {
		h.register(id, "single-node-writer")
	}
	path := h.volctl("volume", "claim", "data")
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	live, past := newSleeper(t, ""), newSleeper(t, "")
	h.volctl("volume", "claim", "live", "--alloc", "web", "--owner", live.owner())
	h.volctl("volume", "claim", "past", "--alloc", "web", "--owner", past.owner())
	h.volctl("volume", "claim", "back")
	file := h.backup()
	raw, err := os.ReadFile(file)
	h.must(err)
	hunt(t, "the backup", string(raw))
	h.volctl("volume", "detach", "back") // the backup still contains this claim
	before, mounts := h.claims(), h.mounts()
	h.lose()
	past.kill()
	h.start("rec")
	if got := h.claims(); len(got) != 0 {
		t.Fatalf("not lost: %q", got)
	}
	mark := h.mark()
	if r, out := h.restored(0, file, "--dry-run"); !r.SameNode || !r.DryRun || out["volume data"] != api.OutcomeRestored || len(h.claims()) != 0 {
		t.Errorf("dry run: %+v, and claims are %q", r, h.claims())
	}
	r, out := h.restored(0, file)
	if !r.SameNode || r.Node != "test-host" || time.Since(r.Taken) > time.Hour || len(out) != 5 {
		t.Errorf("got %+v", r)
	}
	h.awaitFree("past")
	h.volctl("wait", "--volume", "back", "--for", "mounted", "--timeout", "90s")
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "90s")
	h.volctl("wait", "--volume", "live", "--for", "mounted", "--timeout", "90s")
	if want := slices.DeleteFunc(append(before, "back manual"), func(c string) bool { return c == "past web" }); !sameSet(h.claims(), want) {
		t.Errorf("claims are %q, were %q", h.claims(), want)
	}
	for _, c := range h.calls(mark) {
		if c.Method != csitest.ControllerPublish && (c.Volume == "ext/data" || c.Volume == "ext/live") {
			t.Errorf("a call for what was mounted: %s", c)
		}
	}
	for line := range strings.Lines(mounts) {
		if !strings.Contains(h.mounts(), line) && !strings.Contains(line, "/past") {
			t.Errorf("gone: %s", line)
		}
	}
	if r, out := h.restored(0, file); out["volume data"] != api.OutcomePresent || slices.ContainsFunc(r.Items, func(i api.Restored) bool { return i.Outcome != api.OutcomePresent || len(i.Notes) > 0 }) {
		t.Errorf("the second time: %+v", r)
	}
	h.exits(0, "all entries exist already", "state", "restore", file)
	h.kill()
	h.start("rec")
	for _, id := range []string{"data", "back"} {
		h.volctl("volume", "detach", id)
	}
	live.kill()
	h.awaitFree("live")
	h.allGone()
}

func sameSet(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// TestRestoreElsewhere checks that a restore on another host restores only the registrations and
// reports each claim that it drops. That host cannot read a sealed secret without the key of the
// first host.
func TestRestoreElsewhere(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.must(os.WriteFile(filepath.Join(h.dir, "data.yaml"), []byte("id: data\nplugin_id: rec\nexternal_id: ext/data\nsecrets: {password: pl4nt3d-l1t3r4l}\n"), 0o600))
	h.volctl("volume", "register", filepath.Join(h.dir, "data.yaml"))
	h.register("same", "single-node-writer")
	h.register("taken", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "web")
	plugin := filepath.Join(h.dir, "more.yaml")
	h.must(os.WriteFile(plugin, []byte("id: more\nsocket: /run/nothing-here.sock\n"), 0o600))
	h.try("plugin", "register", plugin, "--timeout", "1s") // the registration remains although the plugin is not ready
	file := h.backup()

	o := newRecorded(t, "10s", nil)
	o.must(o.signal(syscall.SIGTERM))
	o.must(os.RemoveAll(filepath.Join(o.dir, "d")))
	o.flags, o.more = []string{"--node-id"}, []string{"--node-id", "other"}
	o.start("rec")
	o.register("same", "single-node-multi-writer")
	if r := o.registerAs("mine", "ext/taken"); r.code != 0 {
		t.Fatal(r.err)
	}
	r, out := o.restored(4, file)
	want := map[string]string{
		"volume data": api.OutcomeRestored, "volume same": api.OutcomePresent, "volume taken": api.OutcomeRefused, "plugin more": api.OutcomeRestored,
	}
	if fmt.Sprint(out) != fmt.Sprint(want) || r.SameNode || !strings.Contains(r.Why, `node "test-host"`) {
		t.Fatalf("got %+v", r)
	}
	for _, i := range r.Items {
		words := strings.Join(i.Notes, "\n")
		for _, has := range map[string][]string{
			"data":  {`without the claims of "web": it is of node "test-host"`, `secret "password" of volume "data"`, "restore that key"},
			"same":  {"capabilities is "},
			"taken": {`is registered here as volume "mine"`},
		}[i.ID] {
			if !strings.Contains(words, has) {
				t.Errorf("%s: %q is not in %q", i.ID, has, words)
			}
		}
	}
	if got := o.claims(); len(got) != 0 {
		t.Errorf("claims are %q", got)
	}
	if list := o.volctl("plugin", "list"); !strings.Contains(list, "more") {
		t.Errorf("plugins:\n%s", list)
	}
	if modes := o.volctl("volume", "status", "same", "-o", "go-template={{.spec.capabilities}}"); !strings.Contains(modes, "multi-writer") {
		t.Errorf("it was written over: %s", modes)
	}
	if res := o.try("volume", "claim", "data", "--timeout", "5s"); res.code == 0 {
		t.Error("it is claimed without the secret")
	}
	key, err := os.ReadFile(filepath.Join(h.dir, "d", "keys", "secrets.key"))
	o.must(err)
	o.must(os.MkdirAll(filepath.Join(o.dir, "d", "keys"), 0o700))
	o.must(os.WriteFile(filepath.Join(o.dir, "d", "keys", "secrets.key"), key, 0o600))
	mark := o.mark()
	o.volctl("volume", "claim", "data")
	o.gave(mark, csitest.NodePublish, map[string]string{"password": "pl4nt3d-l1t3r4l"})
	o.volctl("volume", "detach", "data")
	o.must(o.signal(syscall.SIGTERM))
	o.start("rec")
	if list := o.volctl("plugin", "list"); !strings.Contains(list, "more") {
		t.Errorf("plugins after a restart:\n%s", list)
	}
	h.volctl("volume", "detach", "data")
}

// TestRestoreOtherDataDir checks that a restore to another data dir restores no claims, even if the
// node id is the same. The mounts are below the first data dir.
func TestRestoreOtherDataDir(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data")
	file := h.backup()
	o := newRecorded(t, "10s", nil)
	r, out := o.restored(0, file)
	if why := "it is of the data dir " + h.dir; r.SameNode || !strings.Contains(r.Why, why) || out["volume data"] != api.OutcomeRestored {
		t.Errorf("got %+v, want %q", r, why)
	}
	if got := o.claims(); len(got) != 0 {
		t.Errorf("claims are %q", got)
	}
	h.volctl("volume", "detach", "data")
}

// TestRestoreKilled kills an agent at different moments of a restore. Afterwards the database must
// contain either all restored items or none.
func TestRestoreKilled(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	for i := range 20 {
		h.register(fmt.Sprintf("v%02d", i), "single-node-writer")
	}
	h.volctl("volume", "claim", "v00")
	file := h.backup()
	seen := map[int]int{}
	for i := range 8 {
		h.lose()
		h.start("rec")
		done := h.background("state", "restore", file)
		time.Sleep(time.Duration(i) * 8 * time.Millisecond) // some kills happen before the commit, some after it
		h.kill()
		<-done
		h.start("rec")
		n := len(strings.Fields(h.volctl("volume", "list", "-q")))
		if seen[n]++; n != 0 && n != 20 {
			t.Fatalf("%d volumes", n)
		}
	}
	t.Logf("volumes after a kill: %v", seen)
	h.exits(0, "", "state", "restore", file)
	h.exits(0, "all entries exist already", "state", "restore", file)
	h.volctl("wait", "--volume", "v00", "--for", "mounted", "--timeout", "90s")
	h.volctl("volume", "detach", "v00")
	h.allGone()
}

// TestRestoreForeign mounts a foreign file system at the path of a restored claim. The agent
// recognizes that this mount is not the recorded one, and neither uses nor unmounts it.
func TestRestoreForeign(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	path := h.volctl("volume", "claim", "data")
	file := h.backup()
	h.volctl("volume", "detach", "data")
	h.lose()
	h.must(os.MkdirAll(path, 0o755))
	h.must(syscall.Mount("tmpfs", path, "tmpfs", 0, ""))
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	h.start("rec")
	h.restored(0, file)
	h.await("it is said to stand there", func() bool {
		return strings.Contains(h.volctl("volume", "status", "data"), path) && strings.Contains(h.volctl("volume", "list"), "stuck")
	})
	if raw, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(raw) != "x" {
		t.Errorf("what was in it: %q, %v", raw, err)
	}
	h.must(h.signal(syscall.SIGTERM))
	h.must(syscall.Unmount(path, 0))
	h.must(os.Remove(path)) // the plugin must create the target
	h.start("rec")
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "90s")
	h.volctl("volume", "detach", "data")
	h.allGone()
}

// TestBackupRefuses checks that a backup overwrites no file and leaves no partial file. The agent
// refuses to restore a file that is not a backup, and changes nothing.
func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start("local")
	h.volctl("volume", "create", "data", "--plugin", "local")
	file := h.backup()
	whole, err := os.ReadFile(file)
	h.must(err)
	h.exits(4, "the file exists", "state", "backup", file)
	if piped := h.exits(0, "", "state", "backup", "-"); !bytes.Contains([]byte(piped.out), []byte("volagent state backup")) {
		t.Error("a backup on stdout has no seal")
	}
	h.exits(1, "no such file", "state", "backup", filepath.Join(h.dir, "none", "file"))
	small := filepath.Join(h.dir, "small")
	h.must(os.Mkdir(small, 0o700))
	h.must(syscall.Mount("tmpfs", small, "tmpfs", 0, "size=16k"))
	h.exits(1, "no space left on device", "state", "backup", filepath.Join(small, "file"))
	if left, err := os.ReadDir(small); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	h.must(syscall.Unmount(small, 0))
	whole[len(whole)/2] ^= 1
	for words, raw := range map[string][]byte{"the backup is damaged": whole, "the file is empty": nil, "is not a backup": []byte("id: data\n")} {
		h.must(os.WriteFile(file, raw, 0o600))
		h.exits(2, words, "state", "restore", file)
	}
	h.exits(2, "no such file", "state", "restore", filepath.Join(h.dir, "none"))
	left, err := filepath.Glob(filepath.Join(h.dir, "d", "*copy*"))
	h.must(err)
	left = slices.DeleteFunc(left, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "state.copy-") })
	if len(left) > 0 {
		t.Errorf("left: %q", left) // the list may contain the agent's automatic copies of the state
	}
	if list := h.volctl("volume", "list", "-q"); list != "data" {
		t.Errorf("volumes are %q", list)
	}
}

// TestBackupFullDisk checks that a backup fails if the data dir has no space for a copy. The agent
// continues to work.
func TestBackupFullDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	data := filepath.Join(h.dir, "d")
	h.must(os.Mkdir(data, 0o711))
	h.must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=711"))
	t.Cleanup(func() { h.must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.start()
	ballast := filepath.Join(data, "ballast")
	h.must(fill(ballast))
	file := filepath.Join(h.dir, "backup")
	if r := h.exits(1, "no space left on device", "state", "backup", file); !strings.Contains(r.err, "df -h "+data) {
		t.Errorf("it helps with nothing: %s", r.err)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("there is a file")
	}
	h.must(os.Remove(ballast))
	h.backup()
}

// TestRestoreDebt checks that a restore also restores the pending calls of a forced deregister. The
// agent makes these calls unless another volume on this host uses the same storage by then.
func TestRestoreDebt(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("owed", "single-node-writer")
	h.register("used", "single-node-writer")
	h.volctl("volume", "claim", "owed")
	h.volctl("volume", "claim", "used")
	h.volctl("plugin", "stop", "rec", "--force")
	for _, id := range []string{"owed", "used"} {
		h.volctl("volume", "detach", id, "--no-wait")
		h.volctl("volume", "deregister", id, "-force", "-y")
	}
	file := h.backup()
	h.volctl("plugin", "start", "rec")
	h.await("the debts are undone", func() bool { return h.mounts() == "" && len(decode[api.Node](h.host, "node", "status").Problems) == 0 })
	if r := h.registerAs("other", "ext/used"); r.code != 0 {
		t.Fatal(r.err)
	}
	path := h.volctl("volume", "claim", "other")
	mark, mounts := h.mark(), h.mounts()
	_, out := h.restored(4, file)
	if out["leftover owed"] != api.OutcomeRestored || out["leftover used"] != api.OutcomeRefused {
		t.Fatalf("got %v", out)
	}
	h.await("the debt is undone once more", func() bool {
		calls := h.calls(mark)
		return slices.ContainsFunc(calls, func(c csitest.Call) bool { return c.Method == csitest.ControllerUnpublish && c.Volume == "ext/owed" })
	})
	for _, c := range h.calls(mark) {
		if c.Volume == "ext/used" {
			t.Errorf("a call for what is in use: %s", c)
		}
	}
	if got := h.mounts(); got != mounts || !strings.Contains(got, path) {
		t.Errorf("mounts are\n%s", got)
	}
	h.volctl("volume", "detach", "other")
}
