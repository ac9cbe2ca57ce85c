package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// These are the ports of each member of etcd.
const (
	clientPort  = 2379
	peerPort    = 2380
	metricsPort = 2381
	failPort    = 2382
)

// Member is one member of etcd. Its methods fail the test on errors.
type Member struct {
	Host *Host // the host on which the member runs

	binary  string // the path of the program
	initial string // all members with their URLs, as etcd's flag --initial-cluster takes them
	fails   bool   // the program has failpoints
	joins   bool   // the member joins a cluster that exists; see Replace
	server  Files  // of the servers
	process *Process
}

// Files are the paths of the PEM files with which a client connects to etcd.
type Files struct{ CA, Cert, Key string }

// Start starts the member again and waits until it serves requests.
func (m *Member) Start() {
	m.Host.T.Helper()
	m.Launch()
	m.AwaitReady()
}

// Launch starts the member again and does not wait for it. A member serves requests only while it
// reaches the majority of the members.
func (m *Member) Launch() {
	m.Host.T.Helper()
	if m.Runs() {
		m.Host.T.Fatalf("etcd already runs on %s", m.Host.Name)
	}
	log, err := os.OpenFile(m.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	m.Host.Must(err)
	defer log.Close()
	argv := append([]string{m.binary}, m.flags()...)
	if m.fails {
		argv = append([]string{"env", fmt.Sprintf("GOFAIL_HTTP=%s:%d", m.Host.Address, failPort)}, argv...)
	}
	m.process = m.Host.Spawn(log, argv...)
}

// AwaitReady waits until the member serves linearizable requests.
func (m *Member) AwaitReady() {
	m.Host.T.Helper()
	m.Host.Await("etcd on "+m.Host.Name+" to serve requests", func() bool {
		m.Host.T.Helper()
		if !m.Runs() {
			m.Host.T.Fatalf("etcd on %s has ended", m.Host.Name)
		}
		return strings.Contains(m.get("/health"), `"health":"true"`)
	})
}

// Leads reports whether the member is the leader.
func (m *Member) Leads() bool {
	return m.Runs() && strings.Contains(m.get("/metrics"), "\netcd_server_is_leader 1\n")
}

// Runs reports whether the process of the member runs. A frozen process runs.
func (m *Member) Runs() bool { return m.process != nil && !m.process.Ended() }

// Stop stops the member with SIGTERM and waits for its end.
func (m *Member) Stop() {
	m.Host.T.Helper()
	_ = m.process.End(syscall.SIGTERM) // etcd ends with the signal
}

// Kill kills the member with SIGKILL and waits for its end.
func (m *Member) Kill() {
	m.Host.T.Helper()
	_ = m.process.End(syscall.SIGKILL)
}

// Freeze suspends the member. The kernel still accepts connections for it.
func (m *Member) Freeze() {
	m.Host.T.Helper()
	harness.Freeze(m.Host.Host, m.process.Process)
}

// Thaw ends Freeze.
func (m *Member) Thaw() {
	m.Host.T.Helper()
	m.Host.Must(m.process.Signal(syscall.SIGCONT))
}

// get returns the text of a page of the member's listener for metrics, or "" if the member does not
// answer soon. It asks on the member's own host, so that cuts do not matter.
func (m *Member) get(path string) string {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: m.Host.Dial}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, m.url("http", metricsPort)+path, http.NoBody)
	m.Host.Must(err)
	resp, err := client.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// url returns the URL of one of the member's ports.
func (m *Member) url(scheme string, port int) string {
	return scheme + "://" + net.JoinHostPort(m.Host.Address, fmt.Sprint(port))
}

// flags returns the command line of the member.
func (m *Member) flags() []string {
	state := "new"
	if m.joins {
		state = "existing"
	}
	return []string{
		"--initial-cluster-state=" + state,
		"--name=" + m.Host.Name,
		"--data-dir=" + m.dataDir(),
		"--listen-client-urls=" + m.url("https", clientPort),
		"--advertise-client-urls=" + m.url("https", clientPort),
		"--listen-peer-urls=" + m.url("http", peerPort),
		"--initial-advertise-peer-urls=" + m.url("http", peerPort),
		"--listen-metrics-urls=" + m.url("http", metricsPort),
		"--initial-cluster=" + m.initial,
		"--trusted-ca-file=" + m.server.CA, "--client-cert-auth", "--cert-file=" + m.server.Cert, "--key-file=" + m.server.Key,
		"--quota-backend-bytes=268435456",
		"--log-level=warn",
	}
}

// logFile returns the path of the member's log.
func (m *Member) logFile() string { return filepath.Join(m.Host.Dir, "etcd.log") }

// showLog prints the last lines of the member's log if the test has failed.
func (m *Member) showLog() {
	if !m.Host.T.Failed() {
		return
	}
	raw, err := os.ReadFile(m.logFile())
	m.Host.T.Logf("etcd on %s (%v):\n%s", m.Host.Name, err, raw[max(0, len(raw)-4096):])
}
