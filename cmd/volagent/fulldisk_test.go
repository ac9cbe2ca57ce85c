package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest"
)

// TestFullDisk checks a data dir without free space. The agent refuses a claim with a helpful error
// and sends no CSI call for it. Mounted volumes stay mounted. The agent behaves in the same way
// after a restart. Once there is space again, claims succeed without another command.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.must(h.signal(syscall.SIGTERM))
	data := filepath.Join(h.dir, "d")
	h.must(os.RemoveAll(data))
	h.must(os.Mkdir(data, 0o711))
	h.must(syscall.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=711"))
	t.Cleanup(func() { h.must(syscall.Unmount(data, syscall.MNT_DETACH)) })
	h.start("rec")
	h.register("small", "single-node-writer")
	path := h.volctl("volume", "claim", "small")
	// A record of this size does not fit into the free pages of the database file.
	file := filepath.Join(h.dir, "large.yaml")
	h.must(os.WriteFile(file, fmt.Appendf(nil, "id: large\nname: %q\nplugin_id: rec\nexternal_id: ext/large\n", strings.Repeat("x", 256<<10)), 0o644))
	h.volctl("volume", "register", file)
	since := h.mark()

	ballast := filepath.Join(data, "ballast")
	h.must(fill(ballast))
	refused := func() {
		t.Helper()
		r := h.try("volume", "claim", "large")
		if r.code != 1 || !strings.Contains(r.err, "cannot write the state database") || !strings.Contains(r.err, "no space left") || !strings.Contains(r.err, "df -h "+data) {
			t.Errorf("a claim on a full disk: exit %d, %s", r.code, r.err)
		}
		if got := h.claims(); !slices.Equal(got, []string{"small manual"}) {
			t.Errorf("claims are %q", got)
		}
		h.expect(since)
		h.must(os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	}
	refused()
	if screen := h.volctl("node", "status"); !strings.Contains(screen, "cannot write the state database") {
		t.Errorf("node status:\n%s", screen)
	}
	h.kill()
	h.start("rec")
	refused()

	h.must(os.Remove(ballast))
	h.await("the database is well by itself", func() bool { return strings.Contains(h.volctl("node", "status"), "DB ok") })
	h.expect(since)
	h.volctl("volume", "claim", "large")
	for _, id := range []string{"large", "small"} {
		h.volctl("volume", "detach", id)
	}
	h.must(h.signal(syscall.SIGTERM))
	h.checkDB()
}

// fill writes to a file until the file system is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return f.Close()
}

// failing makes the given system call fail when the running agent uses it on the state database.
// The returned function stops this.
func (h *host) failing(call, errno string) (end func()) {
	h.t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		h.t.Skip("strace is not installed")
	}
	pid := strconv.Itoa(h.cmd.Process.Pid)
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-P", filepath.Join(h.dir, "d", "state.db"),
		"-e", "trace="+call, "-e", "inject="+call+":error="+errno, "-p", pid)
	h.must(cmd.Start())
	// traced reports whether strace traces all threads of the agent (want is true), or none of them
	// (want is false).
	traced := func(want bool) bool {
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
		h.must(err)
		for _, task := range tasks {
			raw, err := os.ReadFile(task)
			if err == nil && strings.Contains(string(raw), "TracerPid:\t0\n") == want {
				return false
			}
		}
		return true
	}
	h.await("strace is there", func() bool { return traced(true) })
	return func() {
		h.t.Helper()
		h.must(cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // the signal ends strace
		h.await("strace is gone", func() bool { return traced(false) })
	}
}

// TestFailingDisk makes commits fail with different errors during claims and detaches. No claim or
// detach may be half complete, and all requests succeed once commits succeed. A commit whose last
// sync failed may have reached the file. After a restart the agent must not use such a commit.
func TestFailingDisk(t *testing.T) {
	t.Parallel()
	for _, fault := range [][2]string{{"pwrite64", "ENOSPC"}, {"pwrite64", "EIO"}, {"fdatasync", "EIO"}} {
		t.Run(strings.Join(fault[:], " "), func(t *testing.T) {
			h := newRecorded(t, "10s", func(c *csitest.Config) { c.Stats = false })
			h.register("a", "single-node-writer")
			h.register("b", "single-node-writer")
			h.volctl("volume", "claim", "a")
			mounts, since := h.mounts(), h.mark()
			end := h.failing(fault[0], fault[1])
			for _, verb := range []string{"claim b", "detach a", "claim b", "detach a"} {
				verb, id, _ := strings.Cut(verb, " ")
				r := h.try("volume", verb, id)
				if r.code != 1 || !strings.Contains(r.err, "cannot write the state database") || !strings.Contains(r.err, "hint:") {
					t.Errorf("%s: exit %d, %s", verb, r.code, r.err)
				}
			}
			begun := time.Now()
			if screen := h.volctl("volume", "status", "a"); !strings.Contains(screen, "mounted, writable") {
				t.Errorf("status:\n%s", screen)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("status took %s", took)
			}
			h.expect(since)
			end()
			h.await("the database is well by itself", func() bool { return strings.Contains(h.volctl("node", "status"), "DB ok") })
			h.kill()
			h.start("rec")
			h.expect(since)
			if now := h.mounts(); now != mounts {
				t.Errorf("mounts were\n%s and are\n%s", mounts, now)
			}
			if got := h.claims(); !slices.Equal(got, []string{"a manual"}) {
				t.Errorf("claims are %q", got)
			}
			h.volctl("volume", "detach", "a")
			h.volctl("volume", "claim", "b")
			h.volctl("volume", "detach", "b")
		})
	}
}
