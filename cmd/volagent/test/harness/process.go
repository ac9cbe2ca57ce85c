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

// StartSleeper starts a sleeper whose working directory is dir, so that a mount on dir is busy. If
// dir is empty, the sleeper keeps the working directory of the test.
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

// PID returns the pid of the sleeper.
func (s *Sleeper) PID() int { return s.Cmd.Process.Pid }

// Owner returns the value of the flag --owner that makes the sleeper the owner of a claim.
func (s *Sleeper) Owner() string { return fmt.Sprintf("pid:%d", s.PID()) }

// Kill kills the sleeper, which must still be running, and waits for its end. Further calls have no
// effect.
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

// ProcessEnded reports whether a process does not exist or is a zombie.
func ProcessEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}

// OwnerEndLimit is the maximum time between the end of an owner and the end of its claim. The agent
// promises 5 s, but the test host may be busy. The limit is shorter than the 30 s between two
// periodic checks of the reaper, so that a periodic check cannot hide a missed event.
const OwnerEndLimit = 20 * time.Second

// FakeBoots returns a function that simulates a reboot. Each call of the function gives the tests'
// mount namespace a new boot id.
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
