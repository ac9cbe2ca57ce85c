package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// snapshooter configures a plugin whose snapshots become ready at the second request.
func snapshooter(c *csitest.Config) {
	c.Snapshot, c.ListSnapshots, c.GetSnapshot, c.GroupSnapshot, c.Clone = true, true, true, true, true
	c.ReadyAfter, c.PageSize = 1, 2
}

// snapshots returns the ids of a plugin's snapshots as volctl lists them.
func (h *host) snapshots(plugin string) []string {
	h.t.Helper()
	return strings.Fields(h.volctl("volume", "snapshot", "list", "--plugin", plugin, "-q"))
}

// write writes a text to a file of a volume. read returns the text of that file.
func (h *host) write(volume, text string) {
	h.t.Helper()
	path := h.volctl("volume", "claim", volume, "--alloc", "w")
	h.must(os.WriteFile(filepath.Join(path, "file"), []byte(text), 0o644))
	h.volctl("volume", "detach", volume, "w")
}

func (h *host) read(volume string) string {
	h.t.Helper()
	path := h.volctl("volume", "claim", volume, "--alloc", "r")
	raw, err := os.ReadFile(filepath.Join(path, "file"))
	h.must(err)
	h.volctl("volume", "detach", volume, "r")
	return string(raw)
}

// TestSnapshots creates, lists, restores and deletes a snapshot, and clones a volume. It also
// creates, shows, restores and deletes a group of snapshots. The test runs once for each method by
// which a plugin can report its snapshots.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	for name, tune := range map[string]func(*csitest.Config){
		"get":     func(*csitest.Config) {},
		"list":    func(c *csitest.Config) { c.GetSnapshot = false },
		"neither": func(c *csitest.Config) { c.GetSnapshot, c.ListSnapshots = false, false },
	} {
		t.Run(name, func(t *testing.T) {
			h := newRecorded(t, "30s", func(c *csitest.Config) {
				snapshooter(c)
				tune(c)
			})
			h.lifeOfSnapshots("rec", h.cfg.ListSnapshots)
			if n := h.count(0, csitest.ListSnapshots); !h.cfg.ListSnapshots && n > 0 {
				t.Errorf("a plugin that cannot list was asked %d times to", n)
			}
		})
	}
}

// lifeOfSnapshots runs all steps of TestSnapshots with one plugin.
func (h *host) lifeOfSnapshots(plugin string, lists bool, params ...string) {
	t := h.t
	t.Helper()
	create := func(id string, flags ...string) {
		t.Helper()
		h.volctl(slices.Concat([]string{"volume", "create", id, "--plugin", plugin}, flags, params)...)
	}
	create("data", "--size", "32MiB")
	create("log", "--size", "32MiB")
	h.write("data", "before")
	h.write("log", "a line")
	snap := h.volctl("volume", "snapshot", "create", "data", "nightly", "-q")
	group := strings.Fields(h.volctl("volume", "snapshot", "group", "create", "pair", "log", "data", "-o", "go-template={{.id}}{{range .snapshots}} {{.id}}{{end}}"))
	if snap == "" || len(group) != 3 {
		t.Fatalf("the snapshot is %q, the group and its members are %q", snap, group)
	}
	if again := h.volctl("volume", "snapshot", "create", "data", "nightly", "-q"); again != snap {
		t.Errorf("the same name again made %q, not %q", again, snap)
	}
	h.write("data", "after")
	if lists {
		want := slices.Sorted(slices.Values(append([]string{snap}, group[1:]...)))
		if got := slices.Sorted(slices.Values(h.snapshots(plugin))); !slices.Equal(got, want) {
			t.Errorf("listed are %q, not %q", got, want)
		}
		if row := h.volctl("volume", "snapshot", "list", "--volume", "data"); !strings.Contains(row, snap) || !strings.Contains(row, "ready") || slices.Contains(strings.Fields(row), "log") {
			t.Errorf("of one volume are listed\n%s", row)
		}
	}
	for _, member := range group[1:] {
		if status := h.volctl("volume", "snapshot", "group", "status", plugin, group[0], group[1], group[2], "-o", "json"); !strings.Contains(status, member) {
			t.Errorf("the group does not show %q:\n%s", member, status)
		}
	}
	logged := h.volctl("volume", "snapshot", "group", "status", plugin, group[0], group[1], group[2], "-o",
		`go-template={{range .snapshots}}{{if eq .volume "log"}}{{.id}}{{end}}{{end}}`)

	create("restored", "--snapshot", snap)
	create("cloned", "--clone", "data")
	create("grouped", "--snapshot", logged)
	for volume, want := range map[string]string{"restored": "before", "cloned": "after", "grouped": "a line"} {
		if got := h.read(volume); got != want {
			t.Errorf("%s holds %q, not %q", volume, got, want)
		}
	}
	h.volctl("volume", "snapshot", "delete", plugin, snap, "-y")
	h.volctl("volume", "snapshot", "delete", plugin, snap, "-y", "--ignore-not-found")
	if plugin == "local" { // only this plugin reports that the snapshot does not exist
		h.refuses(3, `plugin "local" has no snapshot "`+snap+`"`, "volume", "snapshot", "delete", plugin, snap, "-y")
		h.refuses(3, `plugin "local" has no group snapshot "nope"`, "volume", "snapshot", "group", "delete", plugin, "nope", "-y")
	}
	h.volctl("volume", "snapshot", "group", "delete", plugin, group[0], group[1], group[2], "-y")
	if left := h.snapshots(plugin); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// TestSnapshotAfterCrash kills the agent while it creates a snapshot. The next agent must know the
// snapshot, and the same command must complete it.
func TestSnapshotAfterCrash(t *testing.T) {
	t.Parallel()
	for _, moment := range []csitest.Moment{csitest.BeforeEffect, csitest.AfterEffect} {
		t.Run(string(moment), func(t *testing.T) {
			h := newRecorded(t, "30s", snapshooter)
			h.volctl("volume", "create", "data", "--plugin", "rec")
			h.fault(csitest.Fault{Method: csitest.CreateSnapshot, KillCaller: moment})
			r := h.try("volume", "snapshot", "create", "data", "nightly")
			if r.code != 7 || !strings.Contains(r.err, "to continue waiting: volctl volume snapshot create data nightly") {
				t.Fatalf("while the agent is killed: %+v", r)
			}
			_ = h.cmd.Wait() // the plugin killed the agent
			h.cmd = nil
			h.start("rec")
			list := h.volctl("volume", "snapshot", "list", "-o", "wide")
			if !strings.Contains(list, "(named nightly)") || !strings.Contains(list, "unknown") {
				t.Errorf("after the crash are listed\n%s", list)
			}
			r = h.try("volume", "snapshot", "delete", "rec", "nightly", "-y")
			if r.code != 4 || !strings.Contains(r.err, "without a known id") {
				t.Errorf("deleted by its name: %+v", r)
			}
			snap := h.volctl("volume", "snapshot", "create", "data", "nightly", "-q")
			if got := h.snapshots("rec"); len(got) != 1 || got[0] != snap {
				t.Errorf("the plugin has %q, and %q was made", got, snap)
			}
			if list := h.volctl("volume", "snapshot", "list", "-o", "wide"); strings.Contains(list, "unknown") {
				t.Errorf("in the end are listed\n%s", list)
			}
		})
	}
}

// TestSnapshotNotReady checks a snapshot that does not become ready in time. The command reports
// this. The plugin continues the snapshot, and the user can delete it.
func TestSnapshotNotReady(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", func(c *csitest.Config) {
		snapshooter(c)
		c.ReadyAfter = -1
	})
	h.volctl("volume", "create", "data", "--plugin", "rec")
	r := h.try("volume", "snapshot", "create", "data", "nightly", "--timeout", "3s")
	if r.code != 5 || !strings.Contains(r.err, "is not ready after 3s; the plugin continues") || !strings.Contains(r.err, "hint: to see its progress: volctl volume snapshot list --plugin rec") {
		t.Fatalf("got %+v", r)
	}
	if r = h.try("volume", "snapshot", "create", "data", "nightly", "--no-wait"); r.code != 0 || !strings.Contains(r.err, "it is not ready yet; to wait for it: volctl volume snapshot create data nightly") {
		t.Errorf("without a wait: %+v", r)
	}
	list := h.volctl("volume", "snapshot", "list", "--volume", "data", "-o", "wide")
	if !strings.Contains(list, "creating") || !strings.Contains(list, "nightly") {
		t.Errorf("listed are\n%s", list)
	}
	r = h.try("volume", "create", "new", "--plugin", "rec", "--snapshot", h.snapshots("rec")[0])
	if r.code != 4 || !strings.Contains(r.err, `snapshot "snap-nightly" of volume "data" is not ready yet`) || !strings.Contains(r.err, "to wait for it: volctl volume snapshot create data nightly") {
		t.Errorf("a volume was made of a snapshot that is not ready: %+v", r)
	}
	h.volctl("volume", "snapshot", "delete", "rec", h.snapshots("rec")[0], "-y")
	if list := h.volctl("volume", "snapshot", "list", "-o", "json"); strings.Contains(list, "nightly") {
		t.Errorf("after the deletion are listed\n%s", list)
	}
}

// TestSnapshotRefused checks requests that need a missing capability or a missing object. The agent
// refuses them with the proper exit code before it creates anything.
func TestSnapshotRefused(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", nil)
	h.volctl("volume", "create", "data", "--plugin", "rec")
	mark := h.mark()
	for _, tt := range []struct {
		args  string
		code  int
		words string
	}{
		{"volume snapshot create data", 4, `plugin "rec" cannot make snapshots`},
		{"volume snapshot group create pair data", 4, `plugin "rec" cannot make group snapshots`},
		{"volume snapshot list --plugin rec", 4, `plugin "rec" cannot make snapshots`},
		{"volume snapshot delete rec s -y", 4, `plugin "rec" cannot make snapshots`},
		{"volume snapshot delete nosuch s -y", 3, `no plugin "nosuch"`},
		{"volume snapshot create dat", 3, `near: "data"`},
		{"volume create copy --plugin rec --clone data", 4, `plugin "rec" cannot clone volumes`},
		{"volume create copy --plugin rec --snapshot s", 4, `plugin "rec" cannot make snapshots`},
	} {
		r := h.try(strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.err, tt.words) {
			t.Errorf("%s: %+v", tt.args, r)
		}
	}
	h.expect(mark)
	if r := h.try("volume", "snapshot", "list"); r.code != 0 || r.err != "" {
		t.Errorf("no plugin can: %+v", r)
	}
	if r := h.try("volume", "status", "copy"); r.code != 3 {
		t.Errorf("something is left: %+v", r)
	}
}

// TestSourceIsMissing checks that a copy of a missing source fails with this reason and leaves no
// volume.
func TestSourceIsMissing(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", func(c *csitest.Config) {
		snapshooter(c)
		c.AnyVolume = false
	})
	for flag, words := range map[string]string{"--clone": `plugin "rec" has no volume "gone" to clone`, "--snapshot": `plugin "rec" has no snapshot "gone"`} {
		r := h.try("volume", "create", "copy", "--plugin", "rec", flag, "gone")
		if r.code != 3 || !strings.Contains(r.err, words) {
			t.Errorf("%s: %+v", flag, r)
		}
		if r := h.try("volume", "status", "copy"); r.code != 3 {
			t.Errorf("something is left: %+v", r)
		}
	}
}

// TestCopyTakesLong checks a plugin that answers that it is still copying. The agent repeats the
// request with the same name until the copy is complete. Meanwhile it shows the plugin's message.
func TestCopyTakesLong(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", snapshooter)
	h.volctl("volume", "create", "data", "--plugin", "rec")
	h.write("data", "text")
	mark := h.mark()
	busy := func(method string, times int) csitest.Fault {
		return csitest.Fault{Method: method, Times: times, Code: codes.Aborted, Message: "copying"}
	}
	h.fault(busy(csitest.CreateSnapshot, 4), busy(csitest.CreateVolume, 4))
	r := h.try("volume", "snapshot", "create", "data", "nightly")
	if r.code != 0 || h.count(mark, csitest.CreateSnapshot) != 5 || !strings.Contains(r.err, `making snapshot "nightly": CreateSnapshot: in progress already: copying`) {
		t.Errorf("the snapshot: %+v, after %d calls", r, h.count(mark, csitest.CreateSnapshot))
	}
	r = h.try("volume", "create", "copy", "--plugin", "rec", "--clone", "data")
	if r.code != 0 || h.count(mark, csitest.CreateVolume) != 5 || !strings.Contains(r.err, `creating volume "copy": CreateVolume: in progress already: copying`) {
		t.Errorf("the clone: %+v, after %d calls", r, h.count(mark, csitest.CreateVolume))
	}
	if got := h.read("copy"); got != "text" {
		t.Errorf("the copy holds %q", got)
	}
	h.fault(busy(csitest.CreateVolume, -1))
	r = h.try("volume", "create", "late", "--plugin", "rec", "--clone", "data", "--timeout", "1s")
	if r.code != 5 || !strings.Contains(r.err, "after 1s: CreateVolume: in progress already: copying") || !strings.Contains(r.err, "The agent keeps the intent") {
		t.Errorf("too late: %+v", r)
	}
	h.must(h.cfg.Faults().Clear())
	h.volctl("volume", "create", "late", "--plugin", "rec", "--clone", "data")
	if got := h.read("late"); got != "text" {
		t.Errorf("what was gone on with holds %q", got)
	}
}

// TestSnapshotSecrets checks the secrets in calls for snapshots. A call for a registered volume
// contains the volume's secrets. Other calls contain the secrets that the command names.
func TestSnapshotSecrets(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "30s", func(c *csitest.Config) {
		snapshooter(c)
		c.WantSecrets = map[string]string{"key": "hunter2"}
	})
	secret := filepath.Join(h.dir, "key")
	h.must(os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	file := filepath.Join(h.dir, "data.yaml")
	h.must(os.WriteFile(file, fmt.Appendf(nil, "id: data\nplugin_id: rec\nsecrets: {key: {file: %s}}\n", secret), 0o644))
	h.volctl("volume", "create", file)
	snap := h.volctl("volume", "snapshot", "create", "data", "-q")
	flag := "--secret=key=file:" + secret
	if got := h.volctl("volume", "snapshot", "list", "--plugin", "rec", "-q", flag); got != snap {
		t.Errorf("listed is %q, not %q", got, snap)
	}
	h.volctl("volume", "snapshot", "delete", "rec", snap, "-y", flag)
	r := h.try("volume", "snapshot", "delete", "rec", snap, "-y", "--secret=key=file:/nosuch/file")
	if r.code == 0 || !strings.Contains(r.err, `cannot read secret "key"`) || !strings.Contains(r.err, "/nosuch/file") {
		t.Errorf("an unreadable secret: %+v", r)
	}
}

// TestSnapshotsOfBundledDriver runs all steps of TestSnapshots with the bundled driver, for
// directories and for images.
func TestSnapshotsOfBundledDriver(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"directory", "image"} {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t)
			h.start("local")
			h.lifeOfSnapshots("local", true, "--param", "type="+kind)
		})
	}
}
