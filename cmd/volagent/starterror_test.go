package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStartError starts an agent with a mistake in its configuration. Meanwhile the socket accepts
// connections, as systemd's socket does. Every command must report the mistake and its line, and no
// command may wait for the agent.
func TestStartError(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	config := filepath.Join(h.dir, "volagent.yaml")
	const mistake = `volagent.yaml:2: unknown key "log_levl"`
	h.must(os.WriteFile(config, []byte("log_format: text\nlog_levl: debug\n"), 0o600))
	h.must(os.MkdirAll(filepath.Dir(h.socket()), 0o755))
	silent, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket(), Net: "unix"})
	h.must(err)
	h.dies(mistake)

	for _, args := range [][]string{{"volume", "status"}, {"volume", "claim", "data"}, {"events", "-f"}} {
		began := time.Now()
		r := h.try(args...)
		if r.code != 7 || !strings.Contains(r.err, "the agent cannot start: ") || !strings.Contains(r.err, mistake) || !strings.Contains(r.err, `did you mean "log_level"?`) {
			t.Errorf("volctl %v: exit %d\n%s", args, r.code, r.err)
		}
		// The agent promises 2 s. The longer limit allows for a machine under load.
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("volctl %v took %s", args, took)
		}
	}
	if r := h.try("doctor"); r.code != 7 || !strings.Contains(r.out, mistake) {
		t.Errorf("volctl doctor: exit %d\n%s%s", r.code, r.out, r.err)
	}
	out, err := exec.Command(filepath.Join(binDir, "volagent"), append([]string{"inspect"}, h.args()...)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), mistake) || !strings.Contains(string(out), "inspecting data dir "+filepath.Join(h.dir, "d")) {
		t.Errorf("inspect does not look at the data dir (%v):\n%s", err, out)
	}

	h.must(silent.Close())
	if r := h.try("volume", "list"); r.code != 7 || !strings.Contains(r.err, mistake) {
		t.Errorf("with no socket: exit %d\n%s", r.code, r.err)
	}
	h.must(os.WriteFile(config, []byte("log_level: debug\n"), 0o600))
	h.start()

	// An agent that fails to start while another agent is running must not make commands report
	// that the running agent failed.
	h.must(os.WriteFile(config, []byte("log_level: loud\n"), 0o600))
	other := exec.Command(filepath.Join(binDir, "volagent"), append(h.args()[:2:2], "--runtime-dir", filepath.Join(h.dir, "run"))...)
	if out, err := other.CombinedOutput(); err == nil || !strings.Contains(string(out), `volagent.yaml:1: log_level "loud" is not one of`) {
		t.Errorf("an agent with a wrong value: %v\n%s", err, out)
	}
	if r := h.try("wait", "--plugin", "none", "--timeout", "2s"); r.code == 7 || strings.Contains(r.err, "log_level") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	h.must(h.signal(syscall.SIGTERM))
}

// dies asserts that the agent refuses its command line or configuration with the given words.
func (h *host) dies(words string) {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "volagent"), h.args()...)
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); err == nil || code != 2 || !strings.Contains(string(out), words) {
		h.t.Fatalf("volagent: exit %d\n%s", code, out)
	}
}
