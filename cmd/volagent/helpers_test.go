package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
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

func (s *Sleeper) PID() int      { return s.Cmd.Process.Pid }
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

// ExpectNoMounts asserts that no mount remains below the host's directory.
func (h *Host) ExpectNoMounts() {
	h.T.Helper()
	if left := h.Mounts(); left != "" {
		h.T.Errorf("still mounted:\n%s", left)
	}
}

// CodeOf returns the API code of an error. For an error without a code it returns the error's text.
func CodeOf(err error) api.Code {
	var e *api.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	default:
		return api.Code(err.Error())
	}
}

// Immutable is FS_IMMUTABLE_FL of linux/fs.h.
const Immutable = 0x10

// DirFlags returns the inode flags of a directory, see ioctl_iflags(2). If set is not nil, DirFlags
// also replaces the flags by the result of set.
func DirFlags(dir string, set func(uint32) uint32) (uint32, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }() // the directory was only read
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || set == nil {
		return flags, err
	}
	return flags, unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(set(flags)))
}

// UnguardAll clears the immutable flag of all directories below the host's directory, so that the
// test can remove them.
func (h *Host) UnguardAll() {
	h.Must(filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_, _ = DirFlags(path, func(flags uint32) uint32 { return flags &^ Immutable }) // not every file system has these flags
		}
		return nil
	}))
}
