package main_test

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// sleeper is a process that does nothing until it is ended.
type sleeper struct {
	cmd *exec.Cmd
	t   testing.TB
}

// newSleeper starts one in a directory, which it keeps busy; "" is that of the
// tests.
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

// kill ends it, the first time, and reaps it. It must still be there.
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

// allGone asserts that nothing is mounted below the host's directory.
func (h *host) allGone() {
	h.t.Helper()
	if left := h.mounts(); left != "" {
		h.t.Errorf("still mounted:\n%s", left)
	}
}

// codeOf is the API's code of an error; one that is not the API's stands for
// itself.
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
