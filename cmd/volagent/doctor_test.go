package main_test

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
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/volume"
)

// examined contains the findings of volctl doctor. It omits the finding that the agent is in
// another mount namespace than process 1, because all these tests produce that finding.
type examined struct {
	t testing.TB
	api.Doctor
	Fixed []api.DoctorFixed `json:"fixed"`
}

// doctor runs volctl doctor and returns its findings. The command must exit with 1 if there are any
// findings.
func (h *host) doctor(args ...string) examined {
	h.t.Helper()
	r := h.try(append([]string{"doctor", "-o", "json"}, args...)...)
	d := examined{t: h.t}
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.code != min(len(d.Findings), 1) {
		h.t.Fatalf("exit %d, %v:\n%s%s", r.code, err, r.out, r.err)
	}
	d.Findings = slices.DeleteFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-namespace" })
	return d
}

// ids returns the ids of all findings, sorted.
func (d examined) ids() (ids []string) {
	for _, f := range d.Findings {
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	return ids
}

// only asserts that exactly the given findings exist and that each finding is complete.
func (d examined) only(want ...string) {
	d.t.Helper()
	slices.Sort(want)
	if got := d.ids(); !slices.Equal(got, want) {
		d.t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	for _, f := range d.Findings {
		if f.What == "" || f.Then == "" || f.Severity == "" || strings.Contains(f.What+f.Then+f.Do, "%!") {
			d.t.Errorf("a finding does not say all: %+v", f)
		}
	}
}

// finding returns the finding with the given id.
func (d examined) finding(id string) api.DoctorFinding {
	d.t.Helper()
	i := slices.IndexFunc(d.Findings, func(f api.DoctorFinding) bool { return f.ID == id })
	if i < 0 {
		d.t.Fatalf("no finding %s among\n  %s", id, strings.Join(d.ids(), "\n  "))
	}
	return d.Findings[i]
}

// newPatient returns a host with its own fstab and its own mount units.
func newPatient(t *testing.T) recorded {
	t.Helper()
	h := prepared(t, "10s", nil)
	h.env = append(h.env, "LIBMOUNT_FSTAB="+filepath.Join(h.dir, "fstab"), "SYSTEMD_UNIT_PATH="+filepath.Join(h.dir, "units"))
	h.start("rec")
	return h
}

// TestDoctorLeftovers checks that doctor finds mounts, files and directories without a record. The
// option --fix removes empty directories and keeps mounts and directories with data.
func TestDoctorLeftovers(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-multi-writer")
	target := h.volctl("volume", "claim", "data", "--alloc", "a")
	h.doctor().only()

	csi := filepath.Join(h.dir, "d", "csi", "rec")
	at := func(parts ...string) string { return filepath.Join(append([]string{csi}, parts...)...) }
	for _, dir := range []string{at("staging", "old"), at("staging", "foreign"), at("per-alloc", "gone", "data"), at("per-alloc", "bare"), at("per-alloc", "kept", "data", "sub")} {
		h.must(os.MkdirAll(dir, 0o711))
	}
	kept, planted, text := at("per-alloc", "kept", "data", "sub", "file"), at("staging", "foreign", "file"), []byte("of somebody\x00's\n")
	h.must(os.WriteFile(kept, text, 0o600))
	h.must(syscall.Mount("foreign", at("staging", "foreign"), "tmpfs", 0, "size=1m"))
	h.must(os.WriteFile(planted, text, 0o600))
	inside := filepath.Join(target, "in")
	h.must(os.Mkdir(inside, 0o755))
	h.must(syscall.Mount("inside", inside, "tmpfs", 0, "size=1m"))
	old := filepath.Join(h.dir, "d", "state.db.schema-0")
	h.must(os.WriteFile(old, text, 0o600))
	mounts := h.mounts()

	survive := []string{
		"db-backup-file:" + old, "leftover-data:" + at("per-alloc", "kept", "data"), "mount-inside:" + inside, "mount-unexplained:" + at("staging", "foreign"),
	}
	empty := []string{"leftover-empty:" + at("staging", "old"), "leftover-empty:" + at("per-alloc", "gone", "data"), "leftover-empty:" + at("per-alloc", "bare")}
	d := h.doctor()
	d.only(append(slices.Clone(empty), survive...)...)
	for _, id := range empty {
		if d.finding(id).Fix == "" {
			t.Errorf("%s is not to be fixed", id)
		}
	}
	for _, id := range survive {
		if d.finding(id).Fix != "" {
			t.Errorf("%s is to be fixed", id)
		}
	}
	if r := h.try("doctor", "--fix"); r.code != 2 || !strings.Contains(r.err, "volctl doctor --fix -y") {
		t.Errorf("with nobody to ask: exit %d, %s", r.code, r.err)
	}
	h.doctor().only(append(slices.Clone(empty), survive...)...)

	d = h.doctor("--fix", "-y")
	d.only(survive...)
	if len(d.Fixed) != len(empty) || slices.ContainsFunc(d.Fixed, func(f api.DoctorFixed) bool { return f.Outcome != api.FixDone }) {
		t.Errorf("fixed: %+v", d.Fixed)
	}
	if got := h.mounts(); got != mounts {
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
	// The agent reports that it cannot fix a finding, or that a finding no longer exists.
	fixed := h.fix("mount-unexplained:"+at("staging", "foreign"), "leftover-data:"+at("per-alloc", "kept", "data"), "leftover-empty:"+at("per-alloc", "kept", "data"), "leftover-empty:/")
	for i, want := range []string{api.FixLeft, api.FixLeft, api.FixGone, api.FixGone} {
		if fixed[i].Outcome != want {
			t.Errorf("%+v instead of %s", fixed[i], want)
		}
	}
	if got := h.mounts(); got != mounts || size(kept) != int64(len(text)) {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	unmount(t, inside)
	unmount(t, at("staging", "foreign"))
	h.must(errors.Join(os.RemoveAll(at("per-alloc", "kept")), os.Remove(at("staging", "foreign"))))
	h.volctl("volume", "detach", "data", "a")
	h.over("data")
}

// fix requests a fix of the findings with the given ids through the API.
func (h *host) fix(ids ...string) []api.DoctorFixed {
	h.t.Helper()
	fixed, err := apiclient.New(h.socket()).DoctorFix(h.t.Context(), ids)
	h.must(err)
	return fixed
}

// TestDoctorMounts checks that doctor finds mounts that are missing, dead, hung or replaced. It
// also finds data that a process wrote where a mount is missing. The option --fix makes the agent
// repair the mounts where possible.
func TestDoctorMounts(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-writer")
	h.register("served", "single-node-writer")
	h.fault(csitest.Fault{Method: st, Volume: "ext/served", Twist: csitest.Served})
	target := h.volctl("volume", "claim", "data", "--alloc", "a")
	h.volctl("volume", "claim", "served", "--alloc", "a")
	h.doctor().only()

	// Unmount the target without the agent. The agent cannot mount the volume again, because the
	// plugin is stopped.
	h.volctl("plugin", "stop", "rec", "--force")
	unmount(t, target)
	lost := filepath.Join(target, "lost")
	h.must(os.WriteFile(lost, []byte("x"), 0o600))
	d := h.doctor()
	for _, id := range []string{"mount-missing:" + target, "leftover-data:" + target, "plugin-stopped:rec"} {
		d.finding(id)
	}
	d = h.doctor("--fix", "-y")
	d.finding("mount-missing:" + target)
	if got, err := os.ReadFile(lost); err != nil || string(got) != "x" {
		t.Errorf("what was written is lost: %q, %v", got, err)
	}
	h.must(os.Remove(lost))
	h.volctl("plugin", "start", "rec")
	h.await("the mount", func() bool { return len(h.doctor("--fix", "-y").ids()) == 0 })

	// Replace the mount by another file system.
	h.frozen(func() {
		unmount(t, target)
		h.must(syscall.Mount("tmpfs", target, "tmpfs", 0, "size=1m"))
	})
	h.doctor().finding("mount-other:" + target)
	h.doctor("--fix", "-y").finding("mount-other:" + target)
	unmount(t, target)
	h.await("the repair", func() bool { return len(h.doctor("--fix", "-y").ids()) == 0 })

	// Stop the server of a FUSE file system.
	staged := h.stagingPath("served")
	h.signalDaemons(syscall.SIGSTOP)
	d = h.doctor()
	if hung := d.finding("mount-hung:" + staged); hung.Fix != "" || !strings.Contains(hung.What, "no answer since") {
		t.Errorf("%+v", hung)
	}
	d.only("mount-hung:" + staged)
	h.signalDaemons(syscall.SIGCONT)
	h.await("the answer", func() bool { return len(h.doctor().ids()) == 0 })
	h.fault(csitest.Fault{Method: unpub, Times: -1, Code: codes.Internal})
	h.signalDaemons(syscall.SIGKILL)
	h.await("the death", func() bool {
		return slices.Contains(h.doctor().ids(), "mount-dead:"+staged)
	})
	h.must(h.cfg.Faults().Clear())
	h.await("the repair", func() bool { return len(h.doctor("--fix", "-y").ids()) == 0 })
	h.volctl("volume", "detach", "data", "--all")
	h.volctl("volume", "detach", "served", "--all")
	h.over("data")
	h.over("served")
}

// TestDoctorVolumes checks findings about a stuck detach, pending calls and notes. The option --fix
// makes the agent retry the detach and the calls. It also rewrites notes that do not match the
// records.
func TestDoctorVolumes(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-writer")
	h.register("other", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.volctl("volume", "claim", "other", "--alloc", "b")

	meta := filepath.Join(h.dir, "d", "csi", "rec", "meta")
	note, stray, garbage := filepath.Join(meta, "data@a.json"), filepath.Join(meta, "data@z.json"), filepath.Join(meta, "nobody@x.json")
	raw, err := os.ReadFile(note)
	h.must(err)
	var n volume.Note
	h.must(json.Unmarshal(raw, &n))
	n.Claim.Alloc = "z"
	strayRaw, err := json.Marshal(n)
	h.must(err)
	h.must(errors.Join(os.WriteFile(stray, strayRaw, 0o600), os.WriteFile(garbage, []byte("{"), 0o600), os.WriteFile(note, []byte("[]"), 0o600)))
	h.doctor().only("note-stray:"+stray, "note-bad:"+garbage, "note-bad:"+note)
	h.doctor("--fix", "-y").only("note-bad:" + garbage)
	if again, err := os.ReadFile(note); err != nil || string(again) != string(raw) {
		t.Errorf("the note is not as it was: %v\n%s\n%s", err, again, raw)
	}
	h.must(os.Remove(garbage))

	h.fault(csitest.Fault{Method: unpub, Times: -1, Code: codes.FailedPrecondition, Message: "in use by the array"})
	h.volctl("volume", "detach", "data", "a", "--no-wait")
	h.await("it to be stuck", func() bool { return slices.Contains(h.doctor().ids(), "volume-stuck:data") })
	stuck := h.doctor().finding("volume-stuck:data")
	if stuck.Fix == "" || !strings.Contains(stuck.What, "in use by the array") || stuck.Do == "" {
		t.Errorf("%+v", stuck)
	}
	h.must(h.cfg.Faults().Clear())
	h.await("the release", func() bool { return len(h.doctor("--fix", "-y").ids()) == 0 })
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")

	h.volctl("plugin", "stop", "rec", "--force")
	h.volctl("volume", "detach", "other", "b", "--without-plugin")
	d := h.doctor()
	if owes := d.finding("volume-pending-calls:other"); !strings.Contains(owes.What, unpub) {
		t.Errorf("%+v", owes)
	}
	h.volctl("plugin", "start", "rec")
	h.over("other")
}

// TestDoctorPlugins checks the findings about a plugin whose file was removed, with and without
// volumes on the host.
func TestDoctorPlugins(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	file := filepath.Join(h.dir, "plugins.d", "rec.yaml")
	h.must(os.Rename(file, file+".away"))
	h.await("the file to be missed", func() bool { return slices.Contains(h.doctor().ids(), "plugin-pending:rec") })
	h.doctor().only("plugin-pending:rec")
	h.volctl("volume", "detach", "data", "a")
	h.await("the plugin's end", func() bool { return slices.Contains(h.doctor().ids(), "plugin-unknown:rec") })
	h.doctor().only("plugin-unknown:rec")
	h.must(os.Rename(file+".away", file))
	h.await("the plugin", func() bool { return len(h.doctor().ids()) == 0 })
	h.over("data")
}

// TestDoctorTable checks the findings about fstab lines and mount units, with and without a running
// agent.
func TestDoctorTable(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-writer")
	at := func(name string) string { return filepath.Join(h.dir, name) }
	for _, dir := range []string{"good", "full", "full/x", "unit dir", "units"} {
		h.must(os.Mkdir(at(dir), 0o755))
	}
	h.must(os.WriteFile(at("file"), nil, 0o644))
	h.must(os.WriteFile(at("fstab"), []byte(strings.Join([]string{
		"# a comment",
		"/dev/sda1 / ext4 defaults 0 1",
		"data " + at("good") + " csi _netdev,nofail,alloc=web,access_mode=single-node-writer,ro,x-systemd.automount 0 0",
		"data " + at("full") + " csi _netdev,nofail",
		"data " + at("file") + " csi nofail,alloc=x",
		"data " + at("missing") + " csi _netdev,alocc=web,mode=9",
		"nosuch " + at("good") + " csi _netdev,nofail",
	}, "\n")), 0o644))
	h.must(os.WriteFile(at("units/x.mount"), []byte("[Unit]\nAfter=network.target\n[Mount]\nWhat=data\nWhere="+at("unit dir")+"\nType=csi\nOptions=_netdev\n"), 0o644))
	h.must(os.WriteFile(at("units/y.mount"), []byte("[Mount]\nWhat=/dev/sdb\nWhere=/b\nType=ext4\n"), 0o644))
	table := []string{
		"fstab-dir-holds:" + at("full"), "fstab-netdev:" + at("file"), "fstab-dir:" + at("file"), "fstab-nofail:" + at("missing"),
		"fstab-option:" + at("missing"), "fstab-option:" + at("missing") + "#2", "fstab-dir:" + at("missing"), "fstab-duplicate:" + at("good"), "unit-order:" + at("unit dir"),
	}
	d := h.doctor()
	helper := slices.IndexFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-helper" })
	if _, err := os.Stat("/sbin/mount.csi"); (helper < 0) != (err == nil) { // an installed helper may have another version
		t.Errorf("the mount helper: %v, %v", d.ids(), err)
	}
	d.Findings = slices.DeleteFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-helper" })
	d.only(append(slices.Clone(table), "fstab-volume:"+at("good"))...)

	h.must(h.signal(syscall.SIGTERM))
	r := h.try("doctor", "-o", "json")
	alone := examined{t: t}
	h.must(json.Unmarshal([]byte(r.out), &alone))
	if r.code != 7 {
		t.Errorf("with no agent: exit %d, %s", r.code, r.err)
	}
	alone.Findings = slices.DeleteFunc(alone.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-unit" })
	alone.only(append(slices.Clone(table), "agent-down:"+h.socket())...)
}

// TestDoctorWell runs doctor in a pid and mount namespace with its own process 1. On this healthy
// host doctor has no findings and exits with 0. Then it reports an agent that runs in another mount
// namespace than process 1.
func TestDoctorWell(t *testing.T) {
	t.Parallel()
	h := newHost(t)
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
	cmd.Env = append(h.env, "LIBMOUNT_FSTAB=/none", "SYSTEMD_UNIT_PATH=/none", "LOG="+h.log.Name(), "ARGS="+strings.Join(h.args(), " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	h.must(err)
	if got := string(out); !strings.Contains(got, "no findings: 1 volume, 1 claim, 1 plugin checked\nexit 0\n") || !strings.Contains(got, "\nhost-namespace:mnt\n") || !strings.Contains(got, "\nexit 1\n") {
		t.Errorf("it says\n%s", got)
	}
}

// TestDoctorFIFO puts a FIFO in the place of a note. The FIFO must not block doctor, the agent's
// exit or the agent's start.
func TestDoctorFIFO(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "a")
	fifo := filepath.Join(h.dir, "d", "csi", "rec", "meta", "x@y.json")
	h.must(syscall.Mkfifo(fifo, 0o600))
	h.doctor().only("note-bad:" + fifo)
	h.must(h.signal(syscall.SIGTERM))
	h.start("rec")
	h.doctor().only("note-bad:" + fifo)
	h.must(os.Remove(fifo))
	h.doctor().only()
}

// TestDoctorBusy checks that doctor has no false findings while clients continuously claim and
// detach volumes.
func TestDoctorBusy(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	const workers, looks = 4, 25
	client := apiclient.New(h.socket())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var rounds atomic.Int64
	for i := range workers {
		id := fmt.Sprintf("v%d", i)
		h.register(id, "single-node-writer")
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
		h.doctor().only()
		h.await("the next round", func() bool { return rounds.Load() > before })
	}
	cancel()
	wg.Wait()
	h.doctor().only()
	h.allGone()
}
