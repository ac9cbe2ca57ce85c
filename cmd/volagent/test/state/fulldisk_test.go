package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestFullDisk checks a data dir without free space. The agent must refuse a claim with a helpful
// error and without a CSI call. Mounted volumes must stay mounted, also after a restart of the
// agent. When the disk has space again, claims must succeed without another command.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Must(h.Signal(syscall.SIGTERM))
	data := filepath.Join(h.Dir, "d")
	h.Must(os.RemoveAll(data))
	h.Must(os.Mkdir(data, 0o711))
	h.Must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=711"))
	t.Cleanup(func() { h.Must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.Start("rec")
	h.Register("small", "single-node-writer")
	path := h.Volctl("volume", "claim", "small")
	// A record of this size does not fit into the free pages of the database.
	file := filepath.Join(h.Dir, "large.yaml")
	h.Must(os.WriteFile(file, fmt.Appendf(nil, "id: large\nname: %q\nplugin_id: rec\nexternal_id: ext/large\n", strings.Repeat("x", 256<<10)), 0o644))
	h.Volctl("volume", "register", file)
	since := h.Mark()

	ballast := filepath.Join(data, "ballast")
	h.Must(harness.FillFileSystem(ballast))
	refused := func() {
		t.Helper()
		r := h.Try("volume", "claim", "large")
		if r.Code != 1 || !strings.Contains(r.Err, "cannot write the state database") || !strings.Contains(r.Err, "no space left") || !strings.Contains(r.Err, "df -h "+data) {
			t.Errorf("a claim on a full disk: exit %d, %s", r.Code, r.Err)
		}
		if got := h.Claims(); !slices.Equal(got, []string{"small manual"}) {
			t.Errorf("claims are %q", got)
		}
		h.ExpectCalls(since)
		h.Must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	}
	refused()
	if screen := h.Volctl("node", "status"); !strings.Contains(screen, "cannot write the state database") {
		t.Errorf("node status:\n%s", screen)
	}
	h.Kill()
	h.Start("rec")
	refused()

	h.Must(os.Remove(ballast))
	h.Await("the database is well by itself", func() bool { return strings.Contains(h.Volctl("node", "status"), "DB ok") })
	h.ExpectCalls(since)
	h.Volctl("volume", "claim", "large")
	for _, id := range []string{"large", "small"} {
		h.Volctl("volume", "detach", id)
	}
	h.Must(h.Signal(syscall.SIGTERM))
	h.CheckDB()
}

// TestFailingDisk makes commits fail with different errors during claims and detaches. No claim or
// detach may be half complete, and all requests must succeed when commits succeed again. If only
// the last sync of a commit fails, its data may be in the file. After a restart, the agent must not
// use the data of such a commit.
func TestFailingDisk(t *testing.T) {
	t.Parallel()
	for _, fault := range [][2]string{{"pwrite64", "ENOSPC"}, {"pwrite64", "EIO"}, {"fdatasync", "EIO"}} {
		t.Run(strings.Join(fault[:], " "), func(t *testing.T) {
			h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Stats = false })
			h.Register("a", "single-node-writer")
			h.Register("b", "single-node-writer")
			h.Volctl("volume", "claim", "a")
			mounts, since := h.Mounts(), h.Mark()
			end := harness.FailSyscall(h.Host, fault[0], fault[1])
			for _, verb := range []string{"claim b", "detach a", "claim b", "detach a"} {
				verb, id, _ := strings.Cut(verb, " ")
				r := h.Try("volume", verb, id)
				if r.Code != 1 || !strings.Contains(r.Err, "cannot write the state database") || !strings.Contains(r.Err, "hint:") {
					t.Errorf("%s: exit %d, %s", verb, r.Code, r.Err)
				}
			}
			begun := time.Now()
			if screen := h.Volctl("volume", "status", "a"); !strings.Contains(screen, "mounted, writable") {
				t.Errorf("status:\n%s", screen)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("status took %s", took)
			}
			h.ExpectCalls(since)
			end()
			h.Await("the database is well by itself", func() bool { return strings.Contains(h.Volctl("node", "status"), "DB ok") })
			h.Kill()
			h.Start("rec")
			h.ExpectCalls(since)
			if now := h.Mounts(); now != mounts {
				t.Errorf("mounts were\n%s and are\n%s", mounts, now)
			}
			if got := h.Claims(); !slices.Equal(got, []string{"a manual"}) {
				t.Errorf("claims are %q", got)
			}
			h.Volctl("volume", "detach", "a")
			h.Volctl("volume", "claim", "b")
			h.Volctl("volume", "detach", "b")
		})
	}
}
