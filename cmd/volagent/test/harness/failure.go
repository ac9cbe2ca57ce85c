package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// FailSyscall makes the given system call fail when the running agent uses it on the state
// database. The returned function ends this fault.
func FailSyscall(h *Host, call, errno string) (end func()) {
	h.T.Helper()
	return Inject(h, h.Cmd.Process.Pid, call, "error="+errno, "-P", filepath.Join(h.Dir, "d", "state.db"))
}

// Inject changes a system call of a process, which must run, until the test calls the returned
// function. The process may end before. The change is that of "strace --inject", such as "error=EIO" or
// "delay_exit=200ms". Further arguments of strace select the calls.
func Inject(h *Host, pid int, call, change string, more ...string) (end func()) {
	h.T.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		h.T.Skip("strace is not installed")
	}
	args := append([]string{"-f", "-qq", "-o", "/dev/null"}, more...)
	cmd := exec.Command("strace", append(args, "-e", "trace="+call, "-e", "inject="+call+":"+change, "-p", strconv.Itoa(pid))...)
	h.Must(cmd.Start())
	// If want is true, traced reports whether strace traces all threads of the process. If want is
	// false, it reports whether strace traces none of them.
	traced := func(want bool) bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		h.Must(err)
		for _, task := range tasks {
			raw, err := os.ReadFile(task)
			if err == nil && strings.Contains(string(raw), "TracerPid:\t0\n") == want {
				return false
			}
		}
		return true
	}
	h.Await("strace is there", func() bool { return traced(true) })
	return func() {
		h.T.Helper()
		_ = cmd.Process.Signal(syscall.SIGTERM) // strace has ended if the process has
		_ = cmd.Wait()                          // strace reports that the signal ended it
		h.Await("strace is gone", func() bool { return traced(false) })
	}
}

// FillFileSystem creates a file and writes to it until the file system is full.
func FillFileSystem(path string) error {
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
