package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Sleeper is a process that only sleeps until it is killed.
type Sleeper struct {
	Cmd *exec.Cmd
	t   testing.TB
}

// StartSleeper starts a sleeper whose working directory is dir, so that the process keeps the mount
// of dir busy. An empty dir means the directory of the tests.
func StartSleeper(t testing.TB, dir string) *Sleeper {
	t.Helper()
	s := &Sleeper{exec.Command("sleep", "1000"), t}
	s.Cmd.Dir = dir
	s.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// PID returns the process id of the sleeper.
func (s *Sleeper) PID() int { return s.Cmd.Process.Pid }

// Owner returns the sleeper as a value for the flag --owner of a claim.
func (s *Sleeper) Owner() string { return fmt.Sprintf("pid:%d", s.PID()) }

// Kill kills and reaps the sleeper, which must still be running. Further calls have no effect.
func (s *Sleeper) Kill() {
	s.t.Helper()
	if s.Cmd.ProcessState != nil {
		return
	}
	if err := s.Cmd.Process.Kill(); err != nil {
		s.t.Error(err)
	}
	if err := s.Cmd.Wait(); err == nil {
		s.t.Error("the sleeper ended by itself")
	}
}

// ProcessEnded reports whether a process is gone or is a zombie.
func ProcessEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}

// OwnerEndLimit is the time limit for the end of a claim after its owner has ended. The agent
// promises 5 s, but this host may be busy. The limit is less than 30 s, so that the reaper's
// periodic check cannot hide a missed event.
const OwnerEndLimit = 20 * time.Second

// FakeBoots returns a function that simulates a boot. Each call gives this mount namespace a new
// boot id.
func FakeBoots(t *testing.T) (next func(*testing.T)) {
	t.Helper()
	const bootID = "/proc/sys/kernel/random/boot_id"
	file := filepath.Join(t.TempDir(), "boot_id")
	n := 0
	next = func(t *testing.T) {
		t.Helper()
		n++
		if err := os.WriteFile(file, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	next(t)
	if err := syscall.Mount(file, bootID, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(bootID, 0); err != nil {
			t.Error(err)
		}
	})
	return next
}
