package state_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestRestoreHere checks that an agent that lost its state can restore its own backup. Mounted
// volumes must stay mounted without a remount. The agent detaches claims whose owners have ended.
// The plugin still receives the sealed secrets. A second restore must change nothing.
func TestRestoreHere(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "data.yaml"), []byte("id: data\nplugin_id: rec\nexternal_id: ext/data\nsecrets: {password: pl4nt3d-l1t3r4l}\n"), 0o600))
	h.Volctl("volume", "register", filepath.Join(h.Dir, "data.yaml"))
	for _, id := range []string{"live", "past", "free", "back"} {
		h.Register(id, "single-node-writer")
	}
	path := h.Volctl("volume", "claim", "data")
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	live, past := harness.StartSleeper(t, ""), harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "live", "--alloc", "web", "--owner", live.Owner())
	h.Volctl("volume", "claim", "past", "--alloc", "web", "--owner", past.Owner())
	h.Volctl("volume", "claim", "back")
	file := harness.Backup(h.Host)
	raw, err := os.ReadFile(file)
	h.Must(err)
	harness.HuntSecrets(t, "the backup", string(raw))
	h.Volctl("volume", "detach", "back") // only the backup still contains this claim
	before, mounts := h.Claims(), h.Mounts()
	harness.LoseState(h.Host)
	past.Kill()
	h.Start("rec")
	if got := h.Claims(); len(got) != 0 {
		t.Fatalf("not lost: %q", got)
	}
	mark := h.Mark()
	if r, out := harness.Restore(h.Host, 0, file, "--dry-run"); !r.SameNode || !r.DryRun || out["volume data"] != api.OutcomeRestored || len(h.Claims()) != 0 {
		t.Errorf("dry run: %+v, and claims are %q", r, h.Claims())
	}
	r, out := harness.Restore(h.Host, 0, file)
	if !r.SameNode || r.Node != "test-host" || time.Since(r.Taken) > time.Hour || len(out) != 5 {
		t.Errorf("got %+v", r)
	}
	h.AwaitFree("past")
	h.Volctl("wait", "--volume", "back", "--for", "mounted", "--timeout", "90s")
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "90s")
	h.Volctl("wait", "--volume", "live", "--for", "mounted", "--timeout", "90s")
	if want := slices.DeleteFunc(append(before, "back manual"), func(c string) bool { return c == "past web" }); !sameSet(h.Claims(), want) {
		t.Errorf("claims are %q, were %q", h.Claims(), want)
	}
	for _, c := range h.Calls(mark) {
		if c.Method != csitest.ControllerPublish && (c.Volume == "ext/data" || c.Volume == "ext/live") {
			t.Errorf("a call for what was mounted: %s", c)
		}
	}
	for line := range strings.Lines(mounts) {
		if !strings.Contains(h.Mounts(), line) && !strings.Contains(line, "/past") {
			t.Errorf("gone: %s", line)
		}
	}
	if r, out := harness.Restore(h.Host, 0, file); out["volume data"] != api.OutcomePresent || slices.ContainsFunc(r.Items, func(i api.Restored) bool { return i.Outcome != api.OutcomePresent || len(i.Notes) > 0 }) {
		t.Errorf("the second time: %+v", r)
	}
	h.ExpectExit(0, "all entries exist already", "state", "restore", file)
	h.Kill()
	h.Start("rec")
	for _, id := range []string{"data", "back"} {
		h.Volctl("volume", "detach", id)
	}
	live.Kill()
	h.AwaitFree("live")
	h.ExpectNoMounts()
}

func sameSet(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// TestRestoreElsewhere restores a backup on another host. The agent restores only the registrations
// and reports each claim that it drops. It cannot read a sealed secret without the key of the first
// host.
func TestRestoreElsewhere(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "data.yaml"), []byte("id: data\nplugin_id: rec\nexternal_id: ext/data\nsecrets: {password: pl4nt3d-l1t3r4l}\n"), 0o600))
	h.Volctl("volume", "register", filepath.Join(h.Dir, "data.yaml"))
	h.Register("same", "single-node-writer")
	h.Register("taken", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "web")
	plugin := filepath.Join(h.Dir, "more.yaml")
	h.Must(os.WriteFile(plugin, []byte("id: more\nsocket: /run/nothing-here.sock\n"), 0o600))
	// The plugin stays registered although the command fails.
	h.Try("plugin", "register", plugin, "--timeout", "1s")
	file := harness.Backup(h.Host)

	o := harness.StartRecorded(t, "10s", nil)
	o.Must(o.Signal(syscall.SIGTERM))
	o.Must(os.RemoveAll(filepath.Join(o.Dir, "d")))
	o.OmitFlags, o.MoreArgs = []string{"--node-id"}, []string{"--node-id", "other"}
	o.Start("rec")
	o.Register("same", "single-node-multi-writer")
	if r := o.RegisterAs("mine", "ext/taken"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	r, out := harness.Restore(o.Host, 4, file)
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
	if got := o.Claims(); len(got) != 0 {
		t.Errorf("claims are %q", got)
	}
	if list := o.Volctl("plugin", "list"); !strings.Contains(list, "more") {
		t.Errorf("plugins:\n%s", list)
	}
	if modes := o.Volctl("volume", "status", "same", "-o", "go-template={{.spec.capabilities}}"); !strings.Contains(modes, "multi-writer") {
		t.Errorf("it was written over: %s", modes)
	}
	if res := o.Try("volume", "claim", "data", "--timeout", "5s"); res.Code == 0 {
		t.Error("it is claimed without the secret")
	}
	key, err := os.ReadFile(filepath.Join(h.Dir, "d", "keys", "secrets.key"))
	o.Must(err)
	o.Must(os.MkdirAll(filepath.Join(o.Dir, "d", "keys"), 0o700))
	o.Must(os.WriteFile(filepath.Join(o.Dir, "d", "keys", "secrets.key"), key, 0o600))
	mark := o.Mark()
	o.Volctl("volume", "claim", "data")
	o.ExpectSecrets(mark, csitest.NodePublish, map[string]string{"password": "pl4nt3d-l1t3r4l"})
	o.Volctl("volume", "detach", "data")
	o.Must(o.Signal(syscall.SIGTERM))
	o.Start("rec")
	if list := o.Volctl("plugin", "list"); !strings.Contains(list, "more") {
		t.Errorf("plugins after a restart:\n%s", list)
	}
	h.Volctl("volume", "detach", "data")
}

// TestRestoreOtherDataDir checks that a restore to another data dir restores no claims, even if the
// node id is the same, because the mounts are below the first data dir.
func TestRestoreOtherDataDir(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data")
	file := harness.Backup(h.Host)
	o := harness.StartRecorded(t, "10s", nil)
	r, out := harness.Restore(o.Host, 0, file)
	if why := "it is of the data dir " + h.Dir; r.SameNode || !strings.Contains(r.Why, why) || out["volume data"] != api.OutcomeRestored {
		t.Errorf("got %+v, want %q", r, why)
	}
	if got := o.Claims(); len(got) != 0 {
		t.Errorf("claims are %q", got)
	}
	h.Volctl("volume", "detach", "data")
}

// TestRestoreKilled kills the agent at different moments of a restore. Afterwards the database must
// contain either all restored items or none of them.
func TestRestoreKilled(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	for i := range 20 {
		h.Register(fmt.Sprintf("v%02d", i), "single-node-writer")
	}
	h.Volctl("volume", "claim", "v00")
	file := harness.Backup(h.Host)
	seen := map[int]int{}
	for i := range 8 {
		harness.LoseState(h.Host)
		h.Start("rec")
		done := h.StartVolctl("state", "restore", file)
		// Kill the agent before or after the commit.
		time.Sleep(time.Duration(i) * 8 * time.Millisecond)
		h.Kill()
		<-done
		h.Start("rec")
		n := len(strings.Fields(h.Volctl("volume", "list", "-q")))
		if seen[n]++; n != 0 && n != 20 {
			t.Fatalf("%d volumes", n)
		}
	}
	t.Logf("volumes after a kill: %v", seen)
	h.ExpectExit(0, "", "state", "restore", file)
	h.ExpectExit(0, "all entries exist already", "state", "restore", file)
	h.Volctl("wait", "--volume", "v00", "--for", "mounted", "--timeout", "90s")
	h.Volctl("volume", "detach", "v00")
	h.ExpectNoMounts()
}

// TestRestoreForeign mounts a foreign file system at the path of a claim that is then restored. The
// agent must recognize the foreign mount, and must neither use nor unmount it.
func TestRestoreForeign(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	path := h.Volctl("volume", "claim", "data")
	file := harness.Backup(h.Host)
	h.Volctl("volume", "detach", "data")
	harness.LoseState(h.Host)
	h.Must(os.MkdirAll(path, 0o755))
	h.Must(syscall.Mount("tmpfs", path, "tmpfs", 0, ""))
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	h.Start("rec")
	harness.Restore(h.Host, 0, file)
	h.Await("it is said to stand there", func() bool {
		return strings.Contains(h.Volctl("volume", "status", "data"), path) && strings.Contains(h.Volctl("volume", "list"), "stuck")
	})
	if raw, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(raw) != "x" {
		t.Errorf("what was in it: %q, %v", raw, err)
	}
	h.Must(h.Signal(syscall.SIGTERM))
	h.Must(syscall.Unmount(path, 0))
	h.Must(os.Remove(path)) // the plugin must create the target
	h.Start("rec")
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "90s")
	h.Volctl("volume", "detach", "data")
	h.ExpectNoMounts()
}

// TestBackupRefuses checks that a backup overwrites no file and leaves no partial file. The agent
// must refuse to restore a file that is not a backup, and must then change nothing.
func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "data", "--plugin", "local")
	file := harness.Backup(h)
	whole, err := os.ReadFile(file)
	h.Must(err)
	h.ExpectExit(4, "the file exists", "state", "backup", file)
	if piped := h.ExpectExit(0, "", "state", "backup", "-"); !bytes.Contains([]byte(piped.Out), []byte("volagent state backup")) {
		t.Error("a backup on stdout has no seal")
	}
	h.ExpectExit(1, "no such file", "state", "backup", filepath.Join(h.Dir, "none", "file"))
	small := filepath.Join(h.Dir, "small")
	h.Must(os.Mkdir(small, 0o700))
	h.Must(syscall.Mount("tmpfs", small, "tmpfs", 0, "size=16k"))
	h.ExpectExit(1, "no space left on device", "state", "backup", filepath.Join(small, "file"))
	if left, err := os.ReadDir(small); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	h.Must(syscall.Unmount(small, 0))
	whole[len(whole)/2] ^= 1
	for words, raw := range map[string][]byte{"the backup is damaged": whole, "the file is empty": nil, "is not a backup": []byte("id: data\n")} {
		h.Must(os.WriteFile(file, raw, 0o600))
		h.ExpectExit(2, words, "state", "restore", file)
	}
	h.ExpectExit(2, "no such file", "state", "restore", filepath.Join(h.Dir, "none"))
	left, err := filepath.Glob(filepath.Join(h.Dir, "d", "*copy*"))
	h.Must(err)
	left = slices.DeleteFunc(left, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "state.copy-") })
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if list := h.Volctl("volume", "list", "-q"); list != "data" {
		t.Errorf("volumes are %q", list)
	}
}

// TestBackupFullDisk checks that a backup fails if the data dir has no space for a copy. The agent
// continues to work.
func TestBackupFullDisk(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	data := filepath.Join(h.Dir, "d")
	h.Must(os.Mkdir(data, 0o711))
	h.Must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=711"))
	t.Cleanup(func() { h.Must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.Start()
	ballast := filepath.Join(data, "ballast")
	h.Must(harness.FillFileSystem(ballast))
	file := filepath.Join(h.Dir, "backup")
	if r := h.ExpectExit(1, "no space left on device", "state", "backup", file); !strings.Contains(r.Err, "df -h "+data) {
		t.Errorf("it helps with nothing: %s", r.Err)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("there is a file")
	}
	h.Must(os.Remove(ballast))
	harness.Backup(h)
}

// TestRestoreDebt checks that a restore also restores the pending calls of a forced deregister. The
// agent makes these calls unless another volume on this host already uses the same storage.
func TestRestoreDebt(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("owed", "single-node-writer")
	h.Register("used", "single-node-writer")
	h.Volctl("volume", "claim", "owed")
	h.Volctl("volume", "claim", "used")
	h.Volctl("plugin", "stop", "rec", "--force")
	for _, id := range []string{"owed", "used"} {
		h.Volctl("volume", "detach", id, "--no-wait")
		h.Volctl("volume", "deregister", id, "-force", "-y")
	}
	file := harness.Backup(h.Host)
	h.Volctl("plugin", "start", "rec")
	h.Await("the debts are undone", func() bool {
		return h.Mounts() == "" && len(harness.Decode[api.Node](h.Host, "node", "status").Problems) == 0
	})
	if r := h.RegisterAs("other", "ext/used"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	path := h.Volctl("volume", "claim", "other")
	mark, mounts := h.Mark(), h.Mounts()
	_, out := harness.Restore(h.Host, 4, file)
	if out["leftover owed"] != api.OutcomeRestored || out["leftover used"] != api.OutcomeRefused {
		t.Fatalf("got %v", out)
	}
	h.Await("the debt is undone once more", func() bool {
		calls := h.Calls(mark)
		return slices.ContainsFunc(calls, func(c csitest.Call) bool { return c.Method == csitest.ControllerUnpublish && c.Volume == "ext/owed" })
	})
	for _, c := range h.Calls(mark) {
		if c.Volume == "ext/used" {
			t.Errorf("a call for what is in use: %s", c)
		}
	}
	if got := h.Mounts(); got != mounts || !strings.Contains(got, path) {
		t.Errorf("mounts are\n%s", got)
	}
	h.Volctl("volume", "detach", "other")
}
