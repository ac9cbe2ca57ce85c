package mounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// mountAt creates a directory and claims a volume for the alloc "m", with the directory as the
// claim's own directory. The claim's owner is its mount. The argument pid is the process that
// requests the claim.
func mountAt(h harness.Recorded, id string, pid int, change func(*api.ClaimRequest)) (at string, err error) {
	h.T.Helper()
	at = filepath.Join(h.Dir, "at-"+id)
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		h.T.Fatal(err)
	}
	req := api.ClaimRequest{At: at, AtWritable: true, Owner: api.Owner{Kind: api.OwnerMount, PID: pid}}
	if change != nil {
		change(&req)
	}
	_, err = apiclient.New(h.Socket()).ClaimVolume(h.T.Context(), id, "m", req, 60*time.Second)
	return at, err
}

func umount(h harness.Recorded, at string) {
	h.T.Helper()
	h.Await("the unmount of "+at, func() bool { return !errors.Is(syscall.Unmount(at, 0), syscall.EBUSY) })
}

// claimState returns the state of the volume's claim and the kind of its owner.
func claimState(h harness.Recorded, id string) string {
	return h.Volctl("claim", "list", "--volume", id, "-o", `go-template={{range .}}{{.state}} {{.owner.kind}}{{end}}`)
}

// TestMountOwner checks a claim whose owner is its mount. The claim must survive the end of the
// process that requested it, and a kill of the agent. When any program unmounts the volume, the
// claim must end, even if no agent runs at that time.
func TestMountOwner(t *testing.T) {
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	for _, id := range []string{"data", "more"} {
		h.Register(id, "single-node-writer")
	}
	helper := harness.StartSleeper(t, "")
	at, err := mountAt(h, "data", helper.PID(), nil)
	h.Must(err)
	more, err := mountAt(h, "more", helper.PID(), nil)
	h.Must(err)
	helper.Kill()
	h.Must(os.WriteFile(filepath.Join(at, "file"), []byte("kept"), 0o644))
	if r := h.Try("volume", "detach", "data"); r.Code != 4 || !strings.Contains(r.Err, "owned by the mount at "+at+", which is there") || !strings.Contains(r.Err, "hint: volctl umount "+at) {
		t.Errorf("a detach: exit %d, %s", r.Code, r.Err)
	}
	if r := h.Try("volume", "claim", "data", "--alloc", "other"); r.Code != 4 || !strings.Contains(r.Err, "owned by the mount at "+at) {
		t.Errorf("a claim beside it: exit %d, %s", r.Code, r.Err)
	}
	mark := h.Mark()
	// Once the mount exists, any process may repeat the claim.
	if _, err := mountAt(h, "data", os.Getpid(), nil); err != nil {
		t.Errorf("the same again: %v", err)
	}
	h.Kill()
	h.Start("rec")
	h.ExpectCalls(mark)
	if got := claimState(h, "data"); got != "mounted mount" {
		t.Errorf("after the agent was killed the claim is %q", got)
	}

	umount(h, at)
	if took := h.AwaitFree("data"); took > harness.OwnerEndLimit {
		t.Errorf("it took %v", took)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage)
	if evs := h.Volctl("events", "--volume", "data", "-n", "50"); !strings.Contains(evs, "the mount at "+at+" was unmounted") {
		t.Errorf("no event tells why:\n%s", evs)
	}

	mark = h.Mark()
	h.Kill()
	umount(h, more)
	h.Start("rec")
	h.AwaitFree("more")
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage)
	h.ExpectNoMounts()
}

// TestMountOwnerBeforeTheMount checks a claim whose owner is a mount that does not exist yet. Until
// the mount exists, the claim ends with the process that requested it.
func TestMountOwnerBeforeTheMount(t *testing.T) {
	h := harness.StartRecorded(t, "2s", func(c *csitest.Config) { c.Attach = false })
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodePublish, Code: codes.Internal, Times: -1})
	helper := harness.StartSleeper(t, "")
	at := filepath.Join(h.Dir, "at")
	h.Must(os.Mkdir(at, 0o755))
	req := api.ClaimRequest{At: at, Owner: api.Owner{Kind: api.OwnerMount, PID: helper.PID()}}
	if _, err := apiclient.New(h.Socket()).ClaimVolume(t.Context(), "data", "m", req, 0); err != nil {
		t.Fatal(err)
	}
	h.Await("a failure", func() bool { return strings.Contains(h.Volctl("events", "--volume", "data"), "step-failed") })
	if r := h.Try("volume", "detach", "data"); r.Code != 4 || !strings.Contains(r.Err, "(sleep), which mounts "+at) {
		t.Errorf("a detach: exit %d, %s", r.Code, r.Err)
	}
	helper.Kill()
	h.AwaitFree("data")
	h.ExpectNoMounts()

	req.At = ""
	if _, err := apiclient.New(h.Socket()).ClaimVolume(t.Context(), "data", "m", req, 0); harness.CodeOf(err) != api.CodeInvalid {
		t.Errorf("a mount that is nowhere: %v", err)
	}
}

// TestMountOwnerRepaired checks that a claim survives when the agent itself remounts the volume.
// After the remount, the new mount is the owner.
func TestMountOwnerRepaired(t *testing.T) {
	h := harness.StartRecorded(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	h.Register("data", "single-node-writer")
	at, err := mountAt(h, "data", os.Getpid(), func(r *api.ClaimRequest) { r.AtFlags = []string{"nosuid", "noexec"} })
	h.Must(err)
	file := filepath.Join(at, "file")
	h.Must(os.WriteFile(file, []byte("kept"), 0o644))
	for range 3 {
		h.Must(syscall.Kill(h.PluginPID("rec"), syscall.SIGKILL))
		h.Await("the data to be back", func() bool {
			raw, err := os.ReadFile(file)
			return err == nil && string(raw) == "kept"
		})
		h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
		if line := tableLine(t, at); !strings.Contains(line, "nosuid") || !strings.Contains(line, "noexec") {
			t.Errorf("made anew it has lost its options: %s", line)
		}
	}
	if evs := h.Volctl("events", "--volume", "data", "-n", "500"); strings.Contains(evs, "owner-gone") || strings.Contains(evs, "unpublishing") {
		t.Errorf("the claim was released:\n%s", evs)
	}
	umount(h, at)
	if took := h.AwaitFree("data"); took > harness.OwnerEndLimit {
		t.Errorf("it took %v", took)
	}
	h.ExpectNoMounts()
}

// TestMountOwnerGivenUp checks a claim whose mount is lost and cannot be restored, because the
// plugin is not running. volctl umount must end this claim although there is no mount.
func TestMountOwnerGivenUp(t *testing.T) {
	h := harness.StartRecorded(t, "10m", func(c *csitest.Config) { c.Attach, c.Fuse = false, true })
	h.Register("data", "single-node-writer")
	at, err := mountAt(h, "data", os.Getpid(), nil)
	h.Must(err)
	h.Volctl("plugin", "stop", "rec", "--force")
	h.Await("the dead mount to be taken away", func() bool {
		h.Try("volume", "status", "data") // make the agent notice the dead mount
		return tableLine(t, at) == ""
	})
	if r := h.Try("volume", "detach", "data"); r.Code != 4 || !strings.Contains(r.Err, "owned by the mount at "+at+", which is being made anew") ||
		!strings.Contains(r.Err, "hint: volctl volume detach data m --force") {
		t.Errorf("a detach: exit %d, %s", r.Code, r.Err)
	}
	if r := h.Try("umount", at, "--timeout", "1s"); !strings.Contains(r.Err, "Claim \"m\" is detached; volagent") {
		t.Errorf("umount: exit %d, %s", r.Code, r.Err)
	}
	h.Volctl("plugin", "start", "rec")
	h.AwaitFree("data")
	if tableLine(t, at) != "" {
		t.Error("it was mounted again")
	}
	h.ExpectNoMounts()
}

// tableLine returns the line of a mount point in the mount table.
func tableLine(t *testing.T, at string) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if strings.Fields(line)[4] == at {
			return line
		}
	}
	return ""
}

// TestLentDirectory checks requests with an open descriptor of a directory. The agent accepts a
// descriptor of the claim's own directory. It refuses a descriptor of another directory, an invalid
// descriptor, and invalid options, and reports the reason.
func TestLentDirectory(t *testing.T) {
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	h.Register("data", "single-node-writer")
	const path = 0o10000000 // O_PATH
	at := filepath.Join(h.Dir, "at-data")
	h.Must(os.Mkdir(at, 0o755))
	right, err := os.OpenFile(at, path, 0)
	h.Must(err)
	wrong, err := os.OpenFile(h.Dir, path, 0)
	h.Must(err)
	defer func() { h.Must(errors.Join(right.Close(), wrong.Close())) }()
	lend := func(fd int) func(*api.ClaimRequest) { return func(r *api.ClaimRequest) { r.AtFD = &fd } }
	for fd, want := range map[int]string{int(wrong.Fd()): "is open on " + h.Dir + ", and not on " + at, 9999: "no such file", -7: "not a descriptor"} {
		if _, err := mountAt(h, "data", os.Getpid(), lend(fd)); harness.CodeOf(err) != api.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
	for _, flags := range [][]string{{"suid"}, {"noatime", "relatime"}} {
		if _, err := mountAt(h, "data", os.Getpid(), func(r *api.ClaimRequest) { r.AtFlags = flags }); harness.CodeOf(err) != api.CodeInvalid {
			t.Errorf("the options %v: %v", flags, err)
		}
	}
	if _, err := mountAt(h, "data", os.Getpid(), func(r *api.ClaimRequest) { r.ReadOnly = true; lend(int(right.Fd()))(r) }); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "x"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write to what is read-only: %v", err)
	}
	umount(h, at)
	h.AwaitFree("data")
	h.ExpectNoMounts()
}
