package provision_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// listSnapshots returns the ids of a plugin's snapshots as volctl lists them.
func listSnapshots(h *harness.Host, plugin string) []string {
	h.T.Helper()
	return strings.Fields(h.Volctl("volume", "snapshot", "list", "--plugin", plugin, "-q"))
}

// writeVolume writes a text to a file on a volume, and readVolume reads the same file.
func writeVolume(h *harness.Host, volume, text string) {
	h.T.Helper()
	path := h.Volctl("volume", "claim", volume, "--alloc", "w")
	h.Must(os.WriteFile(filepath.Join(path, "file"), []byte(text), 0o644))
	h.Volctl("volume", "detach", volume, "w")
}

func readVolume(h *harness.Host, volume string) string {
	h.T.Helper()
	path := h.Volctl("volume", "claim", volume, "--alloc", "r")
	raw, err := os.ReadFile(filepath.Join(path, "file"))
	h.Must(err)
	h.Volctl("volume", "detach", volume, "r")
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
			h := harness.StartRecorded(t, "30s", func(c *csitest.Config) {
				harness.WithSnapshots(c)
				tune(c)
			})
			lifeOfSnapshots(h.Host, "rec", h.Config.ListSnapshots)
			if n := countCalls(h, 0, csitest.ListSnapshots); !h.Config.ListSnapshots && n > 0 {
				t.Errorf("a plugin that cannot list was asked %d times to", n)
			}
		})
	}
}

// lifeOfSnapshots runs the steps of TestSnapshots with one plugin.
func lifeOfSnapshots(h *harness.Host, plugin string, lists bool, params ...string) {
	t := h.T
	t.Helper()
	create := func(id string, flags ...string) {
		t.Helper()
		h.Volctl(slices.Concat([]string{"volume", "create", id, "--plugin", plugin}, flags, params)...)
	}
	create("data", "--size", "32MiB")
	create("log", "--size", "32MiB")
	writeVolume(h, "data", "before")
	writeVolume(h, "log", "a line")
	snap := h.Volctl("volume", "snapshot", "create", "data", "nightly", "-q")
	group := strings.Fields(h.Volctl("volume", "snapshot", "group", "create", "pair", "log", "data", "-o", "go-template={{.id}}{{range .snapshots}} {{.id}}{{end}}"))
	if snap == "" || len(group) != 3 {
		t.Fatalf("the snapshot is %q, the group and its members are %q", snap, group)
	}
	if again := h.Volctl("volume", "snapshot", "create", "data", "nightly", "-q"); again != snap {
		t.Errorf("the same name again made %q, not %q", again, snap)
	}
	writeVolume(h, "data", "after")
	if lists {
		want := slices.Sorted(slices.Values(append([]string{snap}, group[1:]...)))
		if got := slices.Sorted(slices.Values(listSnapshots(h, plugin))); !slices.Equal(got, want) {
			t.Errorf("listed are %q, not %q", got, want)
		}
		if row := h.Volctl("volume", "snapshot", "list", "--volume", "data"); !strings.Contains(row, snap) || !strings.Contains(row, "ready") || slices.Contains(strings.Fields(row), "log") {
			t.Errorf("of one volume are listed\n%s", row)
		}
	}
	for _, member := range group[1:] {
		if status := h.Volctl("volume", "snapshot", "group", "status", plugin, group[0], group[1], group[2], "-o", "json"); !strings.Contains(status, member) {
			t.Errorf("the group does not show %q:\n%s", member, status)
		}
	}
	logged := h.Volctl("volume", "snapshot", "group", "status", plugin, group[0], group[1], group[2], "-o",
		`go-template={{range .snapshots}}{{if eq .volume "log"}}{{.id}}{{end}}{{end}}`)

	create("restored", "--snapshot", snap)
	create("cloned", "--clone", "data")
	create("grouped", "--snapshot", logged)
	for volume, want := range map[string]string{"restored": "before", "cloned": "after", "grouped": "a line"} {
		if got := readVolume(h, volume); got != want {
			t.Errorf("%s holds %q, not %q", volume, got, want)
		}
	}
	h.Volctl("volume", "snapshot", "delete", plugin, snap, "-y")
	h.Volctl("volume", "snapshot", "delete", plugin, snap, "-y", "--ignore-not-found")
	if plugin == "local" { // only this plugin reports a missing snapshot
		h.ExpectRefusal(3, `plugin "local" has no snapshot "`+snap+`"`, "volume", "snapshot", "delete", plugin, snap, "-y")
		h.ExpectRefusal(3, `plugin "local" has no group snapshot "nope"`, "volume", "snapshot", "group", "delete", plugin, "nope", "-y")
	}
	h.Volctl("volume", "snapshot", "group", "delete", plugin, group[0], group[1], group[2], "-y")
	if left := listSnapshots(h, plugin); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// TestSnapshotAfterCrash kills the agent while the agent creates a snapshot. The next agent must
// know the snapshot, and a repetition of the command must complete it.
func TestSnapshotAfterCrash(t *testing.T) {
	t.Parallel()
	for _, moment := range []csitest.Moment{csitest.BeforeEffect, csitest.AfterEffect} {
		t.Run(string(moment), func(t *testing.T) {
			h := harness.StartRecorded(t, "30s", harness.WithSnapshots)
			h.Volctl("volume", "create", "data", "--plugin", "rec")
			h.AddFaults(csitest.Fault{Method: csitest.CreateSnapshot, KillCaller: moment})
			r := h.Try("volume", "snapshot", "create", "data", "nightly")
			if r.Code != 7 || !strings.Contains(r.Err, "to continue waiting: volctl volume snapshot create data nightly") {
				t.Fatalf("while the agent is killed: %+v", r)
			}
			_ = h.Cmd.Wait() // Wait reports the kill
			h.Cmd = nil
			h.Start("rec")
			list := h.Volctl("volume", "snapshot", "list", "-o", "wide")
			if !strings.Contains(list, "(named nightly)") || !strings.Contains(list, "unknown") {
				t.Errorf("after the crash are listed\n%s", list)
			}
			r = h.Try("volume", "snapshot", "delete", "rec", "nightly", "-y")
			if r.Code != 4 || !strings.Contains(r.Err, "without a known id") {
				t.Errorf("deleted by its name: %+v", r)
			}
			snap := h.Volctl("volume", "snapshot", "create", "data", "nightly", "-q")
			if got := listSnapshots(h.Host, "rec"); len(got) != 1 || got[0] != snap {
				t.Errorf("the plugin has %q, and %q was made", got, snap)
			}
			if list := h.Volctl("volume", "snapshot", "list", "-o", "wide"); strings.Contains(list, "unknown") {
				t.Errorf("in the end are listed\n%s", list)
			}
		})
	}
}

// TestSnapshotNotReady checks a snapshot that is not ready before the command's timeout. The
// command must report this. The plugin continues to work on the snapshot, and the user can delete
// it.
func TestSnapshotNotReady(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", func(c *csitest.Config) {
		harness.WithSnapshots(c)
		c.ReadyAfter = -1
	})
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	r := h.Try("volume", "snapshot", "create", "data", "nightly", "--timeout", "3s")
	if r.Code != 5 || !strings.Contains(r.Err, "is not ready after 3s; the plugin continues") || !strings.Contains(r.Err, "hint: to see its progress: volctl volume snapshot list --plugin rec") {
		t.Fatalf("got %+v", r)
	}
	if r = h.Try("volume", "snapshot", "create", "data", "nightly", "--no-wait"); r.Code != 0 || !strings.Contains(r.Err, "it is not ready yet; to wait for it: volctl volume snapshot create data nightly") {
		t.Errorf("without a wait: %+v", r)
	}
	list := h.Volctl("volume", "snapshot", "list", "--volume", "data", "-o", "wide")
	if !strings.Contains(list, "creating") || !strings.Contains(list, "nightly") {
		t.Errorf("listed are\n%s", list)
	}
	r = h.Try("volume", "create", "new", "--plugin", "rec", "--snapshot", listSnapshots(h.Host, "rec")[0])
	if r.Code != 4 || !strings.Contains(r.Err, `snapshot "snap-nightly" of volume "data" is not ready yet`) || !strings.Contains(r.Err, "to wait for it: volctl volume snapshot create data nightly") {
		t.Errorf("a volume was made of a snapshot that is not ready: %+v", r)
	}
	h.Volctl("volume", "snapshot", "delete", "rec", listSnapshots(h.Host, "rec")[0], "-y")
	if list := h.Volctl("volume", "snapshot", "list", "-o", "json"); strings.Contains(list, "nightly") {
		t.Errorf("after the deletion are listed\n%s", list)
	}
}

// TestSnapshotRefused checks snapshot requests for which the plugin lacks a capability or an object
// does not exist. The agent must refuse them with the right exit code before it creates anything.
func TestSnapshotRefused(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", nil)
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	mark := h.Mark()
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
		r := h.Try(strings.Fields(tt.args)...)
		if r.Code != tt.code || !strings.Contains(r.Err, tt.words) {
			t.Errorf("%s: %+v", tt.args, r)
		}
	}
	h.ExpectCalls(mark)
	if r := h.Try("volume", "snapshot", "list"); r.Code != 0 || r.Err != "" {
		t.Errorf("no plugin can: %+v", r)
	}
	if r := h.Try("volume", "status", "copy"); r.Code != 3 {
		t.Errorf("something is left: %+v", r)
	}
}

// TestSourceIsMissing checks that a copy of a missing source fails, names the missing source, and
// leaves no volume.
func TestSourceIsMissing(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", func(c *csitest.Config) {
		harness.WithSnapshots(c)
		c.AnyVolume = false
	})
	for flag, words := range map[string]string{"--clone": `plugin "rec" has no volume "gone" to clone`, "--snapshot": `plugin "rec" has no snapshot "gone"`} {
		r := h.Try("volume", "create", "copy", "--plugin", "rec", flag, "gone")
		if r.Code != 3 || !strings.Contains(r.Err, words) {
			t.Errorf("%s: %+v", flag, r)
		}
		if r := h.Try("volume", "status", "copy"); r.Code != 3 {
			t.Errorf("something is left: %+v", r)
		}
	}
}

// TestCopyTakesLong checks a plugin that reports that a copy is still in progress. The agent must
// repeat the request with the same name until the copy is complete, and must show the plugin's
// message in the meantime.
func TestCopyTakesLong(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", harness.WithSnapshots)
	h.Volctl("volume", "create", "data", "--plugin", "rec")
	writeVolume(h.Host, "data", "text")
	mark := h.Mark()
	busy := func(method string, times int) csitest.Fault {
		return csitest.Fault{Method: method, Times: times, Code: codes.Aborted, Message: "copying"}
	}
	h.AddFaults(busy(csitest.CreateSnapshot, 4), busy(csitest.CreateVolume, 4))
	r := h.Try("volume", "snapshot", "create", "data", "nightly")
	if r.Code != 0 || countCalls(h, mark, csitest.CreateSnapshot) != 5 || !strings.Contains(r.Err, `making snapshot "nightly": CreateSnapshot: in progress already: copying`) {
		t.Errorf("the snapshot: %+v, after %d calls", r, countCalls(h, mark, csitest.CreateSnapshot))
	}
	r = h.Try("volume", "create", "copy", "--plugin", "rec", "--clone", "data")
	if r.Code != 0 || countCalls(h, mark, csitest.CreateVolume) != 5 || !strings.Contains(r.Err, `creating volume "copy": CreateVolume: in progress already: copying`) {
		t.Errorf("the clone: %+v, after %d calls", r, countCalls(h, mark, csitest.CreateVolume))
	}
	if got := readVolume(h.Host, "copy"); got != "text" {
		t.Errorf("the copy holds %q", got)
	}
	h.AddFaults(busy(csitest.CreateVolume, -1))
	r = h.Try("volume", "create", "late", "--plugin", "rec", "--clone", "data", "--timeout", "1s")
	if r.Code != 5 || !strings.Contains(r.Err, "after 1s: CreateVolume: in progress already: copying") || !strings.Contains(r.Err, "The agent keeps the intent") {
		t.Errorf("too late: %+v", r)
	}
	h.Must(h.Config.Faults().Clear())
	h.Volctl("volume", "create", "late", "--plugin", "rec", "--clone", "data")
	if got := readVolume(h.Host, "late"); got != "text" {
		t.Errorf("what was gone on with holds %q", got)
	}
}

// TestSnapshotSecrets checks the secrets in snapshot calls. A call about a registered volume
// contains the volume's secrets. Any other call contains the secrets that the command names.
func TestSnapshotSecrets(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "30s", func(c *csitest.Config) {
		harness.WithSnapshots(c)
		c.WantSecrets = map[string]string{"key": "hunter2"}
	})
	secret := filepath.Join(h.Dir, "key")
	h.Must(os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	file := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(file, fmt.Appendf(nil, "id: data\nplugin_id: rec\nsecrets: {key: {file: %s}}\n", secret), 0o644))
	h.Volctl("volume", "create", file)
	snap := h.Volctl("volume", "snapshot", "create", "data", "-q")
	flag := "--secret=key=file:" + secret
	if got := h.Volctl("volume", "snapshot", "list", "--plugin", "rec", "-q", flag); got != snap {
		t.Errorf("listed is %q, not %q", got, snap)
	}
	h.Volctl("volume", "snapshot", "delete", "rec", snap, "-y", flag)
	r := h.Try("volume", "snapshot", "delete", "rec", snap, "-y", "--secret=key=file:/nosuch/file")
	if r.Code == 0 || !strings.Contains(r.Err, `cannot read secret "key"`) || !strings.Contains(r.Err, "/nosuch/file") {
		t.Errorf("an unreadable secret: %+v", r)
	}
}

// TestSnapshotsOfBundledDriver runs the steps of TestSnapshots with the bundled driver, for
// directories and for images.
func TestSnapshotsOfBundledDriver(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"directory", "image"} {
		t.Run(kind, func(t *testing.T) {
			h := harness.NewHost(t)
			h.Start("local")
			lifeOfSnapshots(h, "local", true, "--param", "type="+kind)
		})
	}
}
