package harness

import (
	"errors"
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
	if _, err := exec.LookPath("strace"); err != nil {
		h.T.Skip("strace is not installed")
	}
	pid := strconv.Itoa(h.Cmd.Process.Pid)
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-P", filepath.Join(h.Dir, "d", "state.db"),
		"-e", "trace="+call, "-e", "inject="+call+":error="+errno, "-p", pid)
	h.Must(cmd.Start())
	// If want is true, traced reports whether strace traces all threads of the agent. If want is
	// false, it reports whether strace traces none of them.
	traced := func(want bool) bool {
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
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
		h.Must(cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // strace reports that the signal ended it
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
