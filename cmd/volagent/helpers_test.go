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

// sleeper is a process that only sleeps until it is killed.
type sleeper struct {
	cmd *exec.Cmd
	t   testing.TB
}

// newSleeper starts a sleeper whose working directory is dir, so that the process keeps the mount
// of dir busy. An empty dir means the directory of the tests.
func newSleeper(t testing.TB, dir string) *sleeper {
	t.Helper()
	s := &sleeper{exec.Command("sleep", "1000"), t}
	s.cmd.Dir = dir
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

func (s *sleeper) pid() int      { return s.cmd.Process.Pid }
func (s *sleeper) owner() string { return fmt.Sprintf("pid:%d", s.pid()) }

// kill kills and reaps the sleeper, which must still be running. Further calls have no effect.
func (s *sleeper) kill() {
	s.t.Helper()
	if s.cmd.ProcessState != nil {
		return
	}
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Error(err)
	}
	if err := s.cmd.Wait(); err == nil {
		s.t.Error("the sleeper ended by itself")
	}
}

// allGone asserts that no mount remains below the host's directory.
func (h *host) allGone() {
	h.t.Helper()
	if left := h.mounts(); left != "" {
		h.t.Errorf("still mounted:\n%s", left)
	}
}

// codeOf returns the API code of an error. For an error without a code it returns the error's text.
func codeOf(err error) api.Code {
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

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

// dirFlags returns the inode flags of a directory, see ioctl_iflags(2). If set is not nil, dirFlags
// also replaces the flags by the result of set.
func dirFlags(dir string, set func(uint32) uint32) (uint32, error) {
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

// unguardAll clears the immutable flag of all directories below the host's directory, so that the
// test can remove them.
func (h *host) unguardAll() {
	h.must(filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_, _ = dirFlags(path, func(flags uint32) uint32 { return flags &^ immutable }) // not every file system has these flags
		}
		return nil
	}))
}
