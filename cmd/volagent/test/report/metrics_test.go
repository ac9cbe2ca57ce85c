package report_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestMetrics checks the metrics of an agent and its plugin. A request for metrics must not cause a
// call to the plugin.
func TestMetrics(t *testing.T) {
	h := harness.StartRecorded(t, "30s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodePublish, Code: codes.ResourceExhausted})
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	// From now on the agent makes no call of its own, because its next probe is due in 30 seconds.
	before, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	for range 5 {
		harness.ExpectMetrics(h.Host,
			`volagent_plugin_up{driver="csitest.example.com",instance="",plugin="rec",type="monolith"} 1`,
			`volagent_plugin_up{driver="local.csi.volagent",instance="",plugin="local",type="monolith"} 1`,
			`volagent_plugin_state{instance="",plugin="rec",state="ready",type="monolith"} 1`,
			`volagent_plugin_rpc_duration_seconds_count{code="OK",method="ControllerPublishVolume",plugin="rec"} 1`,
			`volagent_plugin_rpc_duration_seconds_count{code="OK",method="NodeStageVolume",plugin="rec"} 1`,
			`volagent_plugin_rpc_duration_seconds_count{code="ResourceExhausted",method="NodePublishVolume",plugin="rec"} 1`,
			`volagent_plugin_rpc_duration_seconds_count{code="OK",method="NodePublishVolume",plugin="rec"} 1`,
			`volagent_plugin_rpcs_in_flight{method="NodeStageVolume",plugin="rec"} 0`,
			`volagent_plugin_restarts_total{instance="",plugin="rec",type="monolith"} 0`,
			`volagent_volumes{state="mounted"} 1`, `volagent_claims{state="mounted"} 1`, `volagent_db_up 1`,
		)
	}
	after, err := csitest.ReadJournal(h.Config.JournalPath())
	h.Must(err)
	if n := len(after) - len(before); n != 0 {
		t.Errorf("the plugin was asked %d times", n)
	}
	if got := harness.Metrics(h.Host); !strings.Contains(got, `volagent_plugin_probe_duration_seconds_count{code="OK",plugin="rec"} `) || strings.Contains(got, `"data"`) {
		t.Errorf("probes, and no volume's name:\n%s", got)
	}

	h.Must(syscall.Kill(h.PluginPID("rec"), syscall.SIGKILL))
	h.Volctl("wait", "--plugin", "rec", "--timeout", "60s")
	h.Await("the restart to be counted", func() bool {
		return strings.Contains(harness.Metrics(h.Host), `volagent_plugin_restarts_total{instance="",plugin="rec",type="monolith"} 1`)
	})
	h.Volctl("volume", "detach", "data", "a")
	h.Volctl("volume", "deregister", "data")
	h.Must(os.Remove(filepath.Join(h.Dir, "plugins.d", "rec.yaml")))
	h.Await("its series to go", func() bool { return !strings.Contains(harness.Metrics(h.Host), `plugin="rec"`) })
}

// scrapedAt matches the log line with the TCP address of the metrics.
var scrapedAt = regexp.MustCompile(`can read the metrics: address=(\S+)`)

// TestMetricsAddress checks that the TCP address serves only metrics. While another program uses
// the port, the agent reports the problem and continues to serve volumes.
func TestMetricsAddress(t *testing.T) {
	h := harness.NewHost(t)
	config := filepath.Join(h.Dir, "volagent.yaml")
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	h.Must(err)
	defer other.Close()
	address := other.Addr().String()
	h.Must(os.WriteFile(config, []byte("metrics_address: "+address+"\n"), 0o644))
	if got := checkConfig(h); !strings.Contains(got, `metrics_address: "`+address+`"`) {
		t.Errorf("check-config prints\n%s", got)
	}
	h.Start()
	h.Await("the problem to be shown", func() bool {
		res := h.Try("status")
		return strings.Contains(res.Out, "1 problem ") && strings.Contains(res.Out, "cannot serve the metrics on "+address+": listen tcp "+address+": bind: address already in use") &&
			strings.Contains(res.Out, "→ ss -ltnp sport = :")
	})
	h.Volctl("volume", "create", "data", "--plugin", "local")
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Must(other.Close())
	h.Await("the problem to go", func() bool { return strings.Contains(h.Try("status").Out, "healthy") })

	get := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		h.Must(err)
		resp, err := http.DefaultClient.Do(req)
		h.Must(err)
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		h.Must(err)
		return resp.StatusCode, string(all)
	}
	for _, want := range []string{"volagent_claims{state=\"mounted\"} 1\n", "volagent_volumes{state=\"mounted\"} 1\n", "volagent_draining 0\n", "volagent_halted 0\n", "volagent_leftovers 0\n", "volagent_db_lost_time_seconds 0\n"} {
		if code, got := get("/metrics"); code != http.StatusOK || !strings.Contains(got, want) {
			t.Errorf("%d, no %q in\n%s", code, want, got)
		}
	}
	for _, path := range []string{"/v1/node", "/v1/volumes", "/v1/health", "/"} {
		if code, got := get(path); code != http.StatusNotFound || strings.Contains(got, "data") {
			t.Errorf("%s: %d %s", path, code, got)
		}
	}

	// After this agent is killed, the next agent must serve the metrics.
	h.Kill()
	h.Must(os.WriteFile(config, []byte("metrics_address: 127.0.0.1:0\n"), 0o644))
	h.Start()
	var said []byte
	h.Await("the address to be said", func() bool {
		said, err = os.ReadFile(filepath.Join(h.Dir, "agent.log"))
		h.Must(err)
		return len(scrapedAt.FindAllSubmatch(said, -1)) == 2
	})
	address = string(scrapedAt.FindAllSubmatch(said, -1)[1][1])
	if code, got := get("/metrics"); code != http.StatusOK || !strings.Contains(got, "volagent_claims{state=\"mounted\"} 1\n") {
		t.Errorf("of the next agent: %d\n%s", code, got)
	}
	h.Volctl("volume", "detach", "data", "a")
	h.Volctl("volume", "delete", "data", "-y")
}

// checkConfig runs volagent check-config, which must succeed, and returns its output.
func checkConfig(h *harness.Host) string {
	h.T.Helper()
	cmd := exec.CommandContext(h.T.Context(), filepath.Join(harness.BinDir, "volagent"), "--config", filepath.Join(h.Dir, "volagent.yaml"), "check-config")
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.T.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
