package report_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestMain(m *testing.M) { harness.Main(m) }

// expectOnly asserts that doctor has exactly the given findings and that each finding is complete.
func expectOnly(d harness.DoctorReport, want ...string) {
	d.T.Helper()
	slices.Sort(want)
	if got := d.IDs(); !slices.Equal(got, want) {
		d.T.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	for _, f := range d.Findings {
		if f.What == "" || f.Then == "" || f.Severity == "" || strings.Contains(f.What+f.Then+f.Do, "%!") {
			d.T.Errorf("a finding does not say all: %+v", f)
		}
	}
}

// TestDoctorLeftovers checks that doctor finds mounts, files and directories without a record. The
// option --fix removes empty directories and keeps mounts and directories with data.
func TestDoctorLeftovers(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-multi-writer")
	target := h.Volctl("volume", "claim", "data", "--alloc", "a")
	expectOnly(harness.Doctor(h.Host))

	csi := filepath.Join(h.Dir, "d", "csi", "rec")
	at := func(parts ...string) string { return filepath.Join(append([]string{csi}, parts...)...) }
	for _, dir := range []string{at("staging", "old"), at("staging", "foreign"), at("per-alloc", "gone", "data"), at("per-alloc", "bare"), at("per-alloc", "kept", "data", "sub")} {
		h.Must(os.MkdirAll(dir, 0o711))
	}
	kept, planted, text := at("per-alloc", "kept", "data", "sub", "file"), at("staging", "foreign", "file"), []byte("of somebody\x00's\n")
	h.Must(os.WriteFile(kept, text, 0o600))
	h.Must(syscall.Mount("foreign", at("staging", "foreign"), "tmpfs", 0, "size=1m"))
	h.Must(os.WriteFile(planted, text, 0o600))
	inside := filepath.Join(target, "in")
	h.Must(os.Mkdir(inside, 0o755))
	h.Must(syscall.Mount("inside", inside, "tmpfs", 0, "size=1m"))
	old := filepath.Join(h.Dir, "d", "state.db.schema-0")
	h.Must(os.WriteFile(old, text, 0o600))
	mounts := h.Mounts()

	survive := []string{
		"db-backup-file:" + old, "leftover-data:" + at("per-alloc", "kept", "data"), "mount-inside:" + inside, "mount-unexplained:" + at("staging", "foreign"),
	}
	empty := []string{"leftover-empty:" + at("staging", "old"), "leftover-empty:" + at("per-alloc", "gone", "data"), "leftover-empty:" + at("per-alloc", "bare")}
	d := harness.Doctor(h.Host)
	expectOnly(d, append(slices.Clone(empty), survive...)...)
	for _, id := range empty {
		if d.Finding(id).Fix == "" {
			t.Errorf("%s is not to be fixed", id)
		}
	}
	for _, id := range survive {
		if d.Finding(id).Fix != "" {
			t.Errorf("%s is to be fixed", id)
		}
	}
	if r := h.Try("doctor", "--fix"); r.Code != 2 || !strings.Contains(r.Err, "volctl doctor --fix -y") {
		t.Errorf("with nobody to ask: exit %d, %s", r.Code, r.Err)
	}
	expectOnly(harness.Doctor(h.Host), append(slices.Clone(empty), survive...)...)

	d = harness.Doctor(h.Host, "--fix", "-y")
	expectOnly(d, survive...)
	if len(d.Fixed) != len(empty) || slices.ContainsFunc(d.Fixed, func(f api.DoctorFixed) bool { return f.Outcome != api.FixDone }) {
		t.Errorf("fixed: %+v", d.Fixed)
	}
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	for _, file := range []string{kept, planted, old} {
		if got, err := os.ReadFile(file); err != nil || string(got) != string(text) {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	for _, dir := range []string{at("staging", "old"), at("per-alloc", "gone"), at("per-alloc", "bare")} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// The agent must report which findings it cannot fix and which ones no longer exist.
	fixed := harness.FixFindings(h.Host, "mount-unexplained:"+at("staging", "foreign"), "leftover-data:"+at("per-alloc", "kept", "data"), "leftover-empty:"+at("per-alloc", "kept", "data"), "leftover-empty:/")
	for i, want := range []string{api.FixLeft, api.FixLeft, api.FixGone, api.FixGone} {
		if fixed[i].Outcome != want {
			t.Errorf("%+v instead of %s", fixed[i], want)
		}
	}
	if got := h.Mounts(); got != mounts || harness.FileSize(kept) != int64(len(text)) {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	harness.Unmount(t, inside)
	harness.Unmount(t, at("staging", "foreign"))
	h.Must(errors.Join(os.RemoveAll(at("per-alloc", "kept")), os.Remove(at("staging", "foreign"))))
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectClean("data")
}

// TestDoctorMounts checks that doctor finds missing, dead, hung and replaced mounts. It also finds
// data that a process wrote to a directory whose mount was missing. The option --fix makes the
// agent repair the mounts where possible.
func TestDoctorMounts(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-writer")
	h.Register("served", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Volume: "ext/served", Twist: csitest.Served})
	target := h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "claim", "served", "--alloc", "a")
	expectOnly(harness.Doctor(h.Host))

	// Unmount the target while the plugin is stopped, so that the agent cannot mount the volume
	// again.
	h.Volctl("plugin", "stop", "rec", "--force")
	harness.Unmount(t, target)
	lost := filepath.Join(target, "lost")
	h.Must(os.WriteFile(lost, []byte("x"), 0o600))
	d := harness.Doctor(h.Host)
	for _, id := range []string{"mount-missing:" + target, "leftover-data:" + target, "plugin-stopped:rec"} {
		d.Finding(id)
	}
	h.Await("the finding after the fix", func() bool {
		return slices.Contains(harness.Doctor(h.Host, "--fix", "-y").IDs(), "mount-missing:"+target)
	})
	if got, err := os.ReadFile(lost); err != nil || string(got) != "x" {
		t.Errorf("what was written is lost: %q, %v", got, err)
	}
	h.Must(os.Remove(lost))
	h.Volctl("plugin", "start", "rec")
	// Wait for the mount, because doctor may skip a volume while the agent works on it.
	h.Await("the mount", func() bool {
		return len(harness.Doctor(h.Host, "--fix", "-y").IDs()) == 0 && strings.Contains(h.Mounts(), " "+target+" ")
	})

	// Replace the mount by another file system.
	harness.WhileFrozen(h.Host, func() {
		harness.Unmount(t, target)
		h.Must(syscall.Mount("tmpfs", target, "tmpfs", 0, "size=1m"))
	})
	h.Await("the other mount", func() bool {
		return slices.Contains(harness.Doctor(h.Host).IDs(), "mount-other:"+target)
	})
	harness.Doctor(h.Host, "--fix", "-y").Finding("mount-other:" + target)
	harness.Unmount(t, target)
	h.Await("the repair", func() bool { return len(harness.Doctor(h.Host, "--fix", "-y").IDs()) == 0 })

	// Suspend the server of a FUSE file system.
	staged := h.StagingPath("served")
	h.SignalDaemons(syscall.SIGSTOP)
	d = harness.Doctor(h.Host)
	if hung := d.Finding("mount-hung:" + staged); hung.Fix != "" || !strings.Contains(hung.What, "no answer since") {
		t.Errorf("%+v", hung)
	}
	expectOnly(d, "mount-hung:"+staged)
	h.SignalDaemons(syscall.SIGCONT)
	h.Await("the answer", func() bool { return len(harness.Doctor(h.Host).IDs()) == 0 })
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Times: -1, Code: codes.Internal})
	h.SignalDaemons(syscall.SIGKILL)
	h.Await("the death", func() bool {
		return slices.Contains(harness.Doctor(h.Host).IDs(), "mount-dead:"+staged)
	})
	h.Must(h.Config.Faults().Clear())
	h.Await("the repair", func() bool { return len(harness.Doctor(h.Host, "--fix", "-y").IDs()) == 0 })
	h.Volctl("volume", "detach", "data", "--all")
	h.Volctl("volume", "detach", "served", "--all")
	h.ExpectClean("data")
	h.ExpectClean("served")
}

// TestDoctorVolumes checks the findings about a stuck detach, pending calls and notes. The option
// --fix makes the agent retry the detach and the calls, and rewrite notes that do not match the
// records.
func TestDoctorVolumes(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-writer")
	h.Register("other", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "claim", "other", "--alloc", "b")

	meta := filepath.Join(h.Dir, "d", "csi", "rec", "meta")
	note, stray, garbage := filepath.Join(meta, "data@a.json"), filepath.Join(meta, "data@z.json"), filepath.Join(meta, "nobody@x.json")
	raw, err := os.ReadFile(note)
	h.Must(err)
	var n volume.Note
	h.Must(json.Unmarshal(raw, &n))
	n.Claim.Alloc = "z"
	strayRaw, err := json.Marshal(n)
	h.Must(err)
	h.Must(errors.Join(os.WriteFile(stray, strayRaw, 0o600), os.WriteFile(garbage, []byte("{"), 0o600), os.WriteFile(note, []byte("[]"), 0o600)))
	expectOnly(harness.Doctor(h.Host), "note-stray:"+stray, "note-bad:"+garbage, "note-bad:"+note)
	expectOnly(harness.Doctor(h.Host, "--fix", "-y"), "note-bad:"+garbage)
	if again, err := os.ReadFile(note); err != nil || string(again) != string(raw) {
		t.Errorf("the note is not as it was: %v\n%s\n%s", err, again, raw)
	}
	h.Must(os.Remove(garbage))

	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Times: -1, Code: codes.FailedPrecondition, Message: "in use by the array"})
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Await("it to be stuck", func() bool { return slices.Contains(harness.Doctor(h.Host).IDs(), "volume-stuck:data") })
	stuck := harness.Doctor(h.Host).Finding("volume-stuck:data")
	if stuck.Fix == "" || !strings.Contains(stuck.What, "in use by the array") || stuck.Do == "" {
		t.Errorf("%+v", stuck)
	}
	h.Must(h.Config.Faults().Clear())
	h.Await("the release", func() bool { return len(harness.Doctor(h.Host, "--fix", "-y").IDs()) == 0 })
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")

	h.Volctl("plugin", "stop", "rec", "--force")
	h.Volctl("volume", "detach", "other", "b", "--without-plugin")
	d := harness.Doctor(h.Host)
	if owes := d.Finding("volume-pending-calls:other"); !strings.Contains(owes.What, csitest.NodeUnpublish) {
		t.Errorf("%+v", owes)
	}
	h.Volctl("plugin", "start", "rec")
	h.ExpectClean("other")
}

// TestDoctorPlugins checks the findings about a plugin whose file was removed, with and without
// volumes on the host.
func TestDoctorPlugins(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	file := filepath.Join(h.Dir, "plugins.d", "rec.yaml")
	h.Must(os.Rename(file, file+".away"))
	h.Await("the file to be missed", func() bool { return slices.Contains(harness.Doctor(h.Host).IDs(), "plugin-pending:rec") })
	expectOnly(harness.Doctor(h.Host), "plugin-pending:rec")
	h.Volctl("volume", "detach", "data", "a")
	h.Await("the plugin's end", func() bool { return slices.Contains(harness.Doctor(h.Host).IDs(), "plugin-unknown:rec") })
	expectOnly(harness.Doctor(h.Host), "plugin-unknown:rec")
	h.Must(os.Rename(file+".away", file))
	h.Await("the plugin", func() bool { return len(harness.Doctor(h.Host).IDs()) == 0 })
	h.ExpectClean("data")
}

// TestDoctorTable checks the findings about fstab lines and mount units, with and without a running
// agent.
func TestDoctorTable(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-writer")
	at := func(name string) string { return filepath.Join(h.Dir, name) }
	for _, dir := range []string{"good", "full", "full/x", "unit dir", "units"} {
		h.Must(os.Mkdir(at(dir), 0o755))
	}
	h.Must(os.WriteFile(at("file"), nil, 0o644))
	h.Must(os.WriteFile(at("fstab"), []byte(strings.Join([]string{
		"# a comment",
		"/dev/sda1 / ext4 defaults 0 1",
		"data " + at("good") + " csi _netdev,nofail,alloc=web,access_mode=single-node-writer,ro,x-systemd.automount 0 0",
		"data " + at("full") + " csi _netdev,nofail",
		"data " + at("file") + " csi nofail,alloc=x",
		"data " + at("missing") + " csi _netdev,alocc=web,mode=9",
		"nosuch " + at("good") + " csi _netdev,nofail",
	}, "\n")), 0o644))
	h.Must(os.WriteFile(at("units/x.mount"), []byte("[Unit]\nAfter=network.target\n[Mount]\nWhat=data\nWhere="+at("unit dir")+"\nType=csi\nOptions=_netdev\n"), 0o644))
	h.Must(os.WriteFile(at("units/y.mount"), []byte("[Mount]\nWhat=/dev/sdb\nWhere=/b\nType=ext4\n"), 0o644))
	table := []string{
		"fstab-dir-holds:" + at("full"), "fstab-netdev:" + at("file"), "fstab-dir:" + at("file"), "fstab-nofail:" + at("missing"),
		"fstab-option:" + at("missing"), "fstab-option:" + at("missing") + "#2", "fstab-dir:" + at("missing"), "fstab-duplicate:" + at("good"), "unit-order:" + at("unit dir"),
	}
	d := harness.Doctor(h.Host)
	helper := slices.IndexFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-helper" })
	// An installed helper may be of another version.
	if _, err := os.Stat("/sbin/mount.csi"); (helper < 0) != (err == nil) {
		t.Errorf("the mount helper: %v, %v", d.IDs(), err)
	}
	d.Findings = slices.DeleteFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-helper" })
	expectOnly(d, append(slices.Clone(table), "fstab-volume:"+at("good"))...)

	h.Must(h.Signal(syscall.SIGTERM))
	r := h.Try("doctor", "-o", "json")
	alone := harness.DoctorReport{T: t}
	h.Must(json.Unmarshal([]byte(r.Out), &alone))
	if r.Code != 7 {
		t.Errorf("with no agent: exit %d, %s", r.Code, r.Err)
	}
	alone.Findings = slices.DeleteFunc(alone.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-unit" })
	expectOnly(alone, append(slices.Clone(table), "agent-down:"+h.Socket())...)
}

// TestDoctorWell runs doctor in new pid and mount namespaces with their own process 1. On this
// healthy host, doctor has no findings and exits with 0. Then doctor must report an agent that runs
// in another mount namespace than process 1.
func TestDoctorWell(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	script := `
set -e
agent() { "$@" 2>>"$LOG" & pid=$!; volctl wait --timeout 100s; }
agent volagent $ARGS
volctl wait --plugin local --timeout 100s
volctl volume create data --plugin local >/dev/null
volctl volume claim data --alloc a >/dev/null
volctl doctor; echo "exit $?"
volctl volume detach data a
kill $pid; wait $pid
agent unshare -m volagent $ARGS
volctl doctor -q || echo "exit $?"
`
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script)
	cmd.Env = append(h.Env, "LIBMOUNT_FSTAB=/none", "SYSTEMD_UNIT_PATH=/none", "LOG="+h.Log.Name(), "ARGS="+strings.Join(h.Args(), " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	h.Must(err)
	if got := string(out); !strings.Contains(got, "no findings: 1 volume, 1 claim, 1 plugin checked\nexit 0\n") || !strings.Contains(got, "\nhost-namespace:mnt\n") || !strings.Contains(got, "\nexit 1\n") {
		t.Errorf("it says\n%s", got)
	}
}

// TestDoctorFIFO replaces a note by a FIFO. The FIFO must block neither doctor nor a stop or start
// of the agent.
func TestDoctorFIFO(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	fifo := filepath.Join(h.Dir, "d", "csi", "rec", "meta", "x@y.json")
	h.Must(syscall.Mkfifo(fifo, 0o600))
	expectOnly(harness.Doctor(h.Host), "note-bad:"+fifo)
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start("rec")
	expectOnly(harness.Doctor(h.Host), "note-bad:"+fifo)
	h.Must(os.Remove(fifo))
	expectOnly(harness.Doctor(h.Host))
}

// TestDoctorBusy checks that doctor has no false findings while clients continuously claim and
// detach volumes.
func TestDoctorBusy(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	const workers, looks = 4, 25
	client := apiclient.New(h.Socket())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var rounds atomic.Int64
	for i := range workers {
		id := fmt.Sprintf("v%d", i)
		h.Register(id, "single-node-writer")
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := client.ClaimVolume(t.Context(), id, "a", api.ClaimRequest{}, time.Minute); err != nil {
					t.Error(err)
				}
				if err := client.DetachClaim(t.Context(), id, "a", apiclient.DetachOptions{Wait: time.Minute}); err != nil {
					t.Error(err)
				}
				rounds.Add(1)
			}
		})
	}
	for range looks {
		before := rounds.Load()
		expectOnly(harness.Doctor(h.Host))
		h.Await("the next round", func() bool { return rounds.Load() > before })
	}
	cancel()
	wg.Wait()
	expectOnly(harness.Doctor(h.Host))
	h.ExpectNoMounts()
}
