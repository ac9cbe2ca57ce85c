package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// WallClock is a program of the agent whose wall clock a test can change. The monotonic clock stays as it is.
type WallClock struct {
	Program string // the path of the program, for Host.Program
}

// clockVariable is the environment variable with the path of the file that SetClock writes.
const clockVariable = "VOLAGENT_TEST_CLOCK"

// BuildWallClock builds the agent with a changed time.Now. No other way moves the wall clock of one process:
// Linux has no namespace for it, and a Go program uses no C library that could be replaced. The first build
// takes minutes, because every package depends on the package time.
func BuildWallClock(t testing.TB) WallClock {
	t.Helper()
	w := WallClock{Program: filepath.Join(t.TempDir(), "volagent")}
	if err := w.build(t.TempDir()); err != nil {
		t.Fatalf("cannot build the agent with another clock: %v", err)
	}
	return w
}

// SetClock moves the wall clock of the host's agent, which must be the one of BuildWallClock, by a number of
// whole seconds.
func (w WallClock) SetClock(h *Host, by time.Duration) error {
	file := filepath.Join(h.Dir, "clock")
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%d", int64(by/time.Second)), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// Use makes the host's agent use the program.
func (w WallClock) Use(h *Host) {
	h.Program, h.Env = w.Program, append(h.Env, clockVariable+"="+filepath.Join(h.Dir, "clock"))
}

// readClock is the additional file of the package time. The runtime calls Now where a system call is not
// possible, so a goroutine reads the file.
const readClock = `package time

import (
	"sync/atomic"
	"syscall"
)

// wallOffset is the number of seconds by which the wall clock is moved.
var wallOffset atomic.Int64

func init() {
	if path, ok := syscall.Getenv("` + clockVariable + `"); ok {
		go func() {
			for ; ; Sleep(50 * Millisecond) {
				wallOffset.Store(readOffset(path))
			}
		}()
	}
}

func readOffset(path string) (by int64) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	var text [24]byte
	n, _ := syscall.Read(fd, text[:])
	_ = syscall.Close(fd)
	sign := int64(1)
	for _, b := range text[:max(n, 0)] {
		if b == '-' {
			sign = -1
			continue
		}
		by = by*10 + int64(b-'0')
	}
	return sign * by
}
`

// build builds the program with an overlay for the standard library, whose files are written to a directory.
func (w WallClock) build(dir string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	std := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		return err
	}
	const read = "\tsec, nsec, mono := runtimeNow()\n"
	if bytes.Count(source, []byte(read)) != 1 {
		return fmt.Errorf("%s does not have the expected function Now", std)
	}
	source = bytes.Replace(source, []byte(read), []byte(read+"\tsec += wallOffset.Load()\n"), 1)

	files := map[string]string{}
	for name, text := range map[string][]byte{"time.go": source, "walloffset.go": []byte(readClock)} {
		files[filepath.Join(std, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-overlay", filepath.Join(dir, "overlay.json"), "-o", w.Program, "github.com/volagent/volagent/cmd/volagent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
