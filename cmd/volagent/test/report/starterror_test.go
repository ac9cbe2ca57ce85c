package report_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestStartError starts an agent with a mistake in its configuration, while the socket accepts
// connections, as a socket of systemd does. Every command must report the mistake and its line
// number without waiting for the agent.
func TestStartError(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	config := filepath.Join(h.Dir, "volagent.yaml")
	const mistake = `volagent.yaml:2: unknown key "log_levl"`
	h.Must(os.WriteFile(config, []byte("log_format: text\nlog_levl: debug\n"), 0o600))
	h.Must(os.MkdirAll(filepath.Dir(h.Socket()), 0o755))
	silent, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.Socket(), Net: "unix"})
	h.Must(err)
	expectDeath(h, mistake)

	for _, args := range [][]string{{"volume", "status"}, {"volume", "claim", "data"}, {"events", "-f"}} {
		began := time.Now()
		r := h.Try(args...)
		if r.Code != 7 || !strings.Contains(r.Err, "the agent cannot start: ") || !strings.Contains(r.Err, mistake) || !strings.Contains(r.Err, `did you mean "log_level"?`) {
			t.Errorf("volctl %v: exit %d\n%s", args, r.Code, r.Err)
		}
		// The agent promises 2 s. The limit is longer because the machine may be under load.
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("volctl %v took %s", args, took)
		}
	}
	if r := h.Try("doctor"); r.Code != 7 || !strings.Contains(r.Out, mistake) {
		t.Errorf("volctl doctor: exit %d\n%s%s", r.Code, r.Out, r.Err)
	}
	out, err := exec.Command(filepath.Join(harness.BinDir, "volagent"), append([]string{"inspect"}, h.Args()...)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), mistake) || !strings.Contains(string(out), "inspecting data dir "+filepath.Join(h.Dir, "d")) {
		t.Errorf("inspect does not look at the data dir (%v):\n%s", err, out)
	}

	h.Must(silent.Close())
	if r := h.Try("volume", "list"); r.Code != 7 || !strings.Contains(r.Err, mistake) {
		t.Errorf("with no socket: exit %d\n%s", r.Code, r.Err)
	}
	h.Must(os.WriteFile(config, []byte("log_level: debug\n"), 0o600))
	h.Start()

	// A second agent fails to start while the first one runs. Commands must not report this
	// failure.
	h.Must(os.WriteFile(config, []byte("log_level: loud\n"), 0o600))
	other := exec.Command(filepath.Join(harness.BinDir, "volagent"), append(h.Args()[:2:2], "--runtime-dir", filepath.Join(h.Dir, "run"))...)
	if out, err := other.CombinedOutput(); err == nil || !strings.Contains(string(out), `volagent.yaml:1: log_level "loud" is not one of`) {
		t.Errorf("an agent with a wrong value: %v\n%s", err, out)
	}
	if r := h.Try("wait", "--plugin", "none", "--timeout", "2s"); r.Code == 7 || strings.Contains(r.Err, "log_level") {
		t.Errorf("exit %d\n%s", r.Code, r.Err)
	}
	h.Must(h.Signal(syscall.SIGTERM))
}

// expectDeath asserts that the agent fails to start because of its flags or configuration, and that
// the error contains the given words.
func expectDeath(h *harness.Host, words string) {
	h.T.Helper()
	cmd := exec.Command(filepath.Join(harness.BinDir, "volagent"), h.Args()...)
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); err == nil || code != 2 || !strings.Contains(string(out), words) {
		h.T.Fatalf("volagent: exit %d\n%s", code, out)
	}
}
