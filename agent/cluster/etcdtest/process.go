package etcdtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// BinaryVariable is an environment variable that names an etcd binary. Tests then use that binary,
// and do not build one.
const BinaryVariable = "VOLAGENT_TEST_ETCD"

// Binary returns the path of the etcd program. The go command builds it once and keeps it in its
// build cache, which all tests share. `make test` does this before the tests start.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(BinaryVariable); path != "" {
		return path
	}
	return build(t, "etcd.mod")
}

// build returns the path of the etcd program of a module file in the folder scripts.
func build(t testing.TB, modfile string) string {
	t.Helper()
	path, err := buildTool(modfile)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildTool builds an etcd program, unless the build cache has it, and returns its path.
func buildTool(modfile string) (string, error) {
	scripts, err := scriptsDir()
	if err != nil {
		return "", err
	}
	path, err := goCommand(scripts, "tool", "-modfile="+modfile, "-n", "go.etcd.io/etcd/server/v3")
	if err != nil {
		return "", fmt.Errorf("cannot build etcd: %w", err)
	}
	return path, nil
}

// scriptsDir returns the folder with the module files of programs.
func scriptsDir() (string, error) {
	mod, err := goCommand("", "env", "GOMOD")
	if err != nil {
		return "", fmt.Errorf("cannot find go.mod: %w", err)
	}
	return filepath.Join(filepath.Dir(mod), "scripts"), nil
}

// member is one etcd server.
type member struct {
	name string
	dir  string // its data directory, next to its log file
	ip   string

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	err   error         // how the process ended; valid after ended is closed
}

// address returns the address of one of the member's ports.
func (m *member) address(port int) string { return net.JoinHostPort(m.ip, fmt.Sprint(port)) }

// runs reports whether the process of the member runs. A frozen process runs.
func (m *member) runs() bool {
	if m.ended == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// start starts the process of the member.
func (m *member) start(binary string, flags []string) error {
	log, err := os.OpenFile(m.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(binary, flags...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started, ended := make(chan error), make(chan struct{})
	go func() {
		// The kernel sends the signal of Pdeathsig when the thread that started the process ends. The
		// goroutine keeps its thread until the process has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		m.err = cmd.Wait()
		close(ended)
	}()
	if err := <-started; err != nil {
		return errors.Join(err, log.Close())
	}
	m.cmd, m.ended = cmd, ended
	return log.Close() // the process has its own descriptor
}

// log returns the last lines that the member wrote.
func (m *member) log() string { return tail(m.dir + ".log") }
