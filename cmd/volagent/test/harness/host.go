package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Host is a simulated host for one test. It consists of directories, an agent, and the processes
// that the agent starts.
type Host struct {
	T   testing.TB
	Dir string // a short path, because CSI limits paths to 128 bytes
	Env []string
	Cmd *exec.Cmd
	Log *os.File

	OmitFlags []string // flags that Args omits together with their values
	MoreArgs  []string // additional arguments of the agent
	Wrapper   []string // a command that runs the agent, such as a wrapper program

	Program string // path of the agent's program, or "" for the one in BinDir

	Place Place // where the agent and the commands run; NewHost sets it to Here
}

// Must ends the test if err is not nil.
func (h *Host) Must(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// Socket returns the path of the agent's socket.
func (h *Host) Socket() string { return filepath.Join(h.Dir, "run", "volagent.sock") }

// Args returns the agent's command-line flags. They place all files and sockets of the agent in the
// host's directory.
func (h *Host) Args() []string {
	args := []string{
		"--config", filepath.Join(h.Dir, "volagent.yaml"), "--data-dir", filepath.Join(h.Dir, "d"),
		"--runtime-dir", filepath.Join(h.Dir, "run"), "--plugin-dir", filepath.Join(h.Dir, "plugins.d"),
		"--node-id", "test-host", "--log-level", "debug",
	}
	for _, f := range h.OmitFlags {
		if i := slices.Index(args, f); i >= 0 {
			args = slices.Delete(args, i, i+2)
		}
	}
	return append(args, h.MoreArgs...)
}

// Await waits until cond returns true. After 100 seconds it fails the test.
func (h *Host) Await(what string, cond func() bool) {
	h.T.Helper()
	for end := time.Now().Add(100 * time.Second); !cond(); {
		if time.Now().After(end) {
			h.T.Fatalf("did not come true in time: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ReadFiles returns the concatenated content of all files of the host that match a pattern.
func (h *Host) ReadFiles(pattern string) (text string) {
	h.T.Helper()
	names, err := filepath.Glob(filepath.Join(h.Dir, pattern))
	h.Must(err)
	for _, name := range names {
		raw, err := os.ReadFile(name)
		h.Must(err)
		text += string(raw)
	}
	return text
}

// Mkdir creates a directory below the host's directory and returns its path.
func (h *Host) Mkdir(name string) string {
	h.T.Helper()
	dir := filepath.Join(h.Dir, name)
	h.Must(os.Mkdir(dir, 0o755))
	return dir
}
