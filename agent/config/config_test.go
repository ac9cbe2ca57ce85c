package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
)

// load reads a configuration from flags, the environment and the text of a file.
func load(t *testing.T, file string, args ...string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	fl := pflag.NewFlagSet("volagent", pflag.ContinueOnError)
	AddFlags(fl)
	if err := fl.Parse(append([]string{"--config", path}, args...)); err != nil {
		t.Fatal(err)
	}
	return Load(fl)
}

// TestPrecedence checks that a flag overrides the environment, the environment overrides the file,
// and the file overrides the default.
func TestPrecedence(t *testing.T) {
	const file = "log_level: warn\nlog_format: json\nruntime_dir: /file\nnode_id: 0123\n"
	t.Setenv("VOLAGENT_LOG_LEVEL", "error")
	t.Setenv("VOLAGENT_RUNTIME_DIR", "/env")
	c, err := load(t, file, "--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		DataDir: "/var/lib/volagent", RuntimeDir: "/env", Socket: "/env/volagent.sock", SocketGroup: "root",
		PluginDir: "/etc/volagent/plugins.d", FenceDir: "/etc/volagent/fence.d", VolumesDir: "/etc/volagent/volumes.d", ClassesDir: "/etc/volagent/classes.d", NodeID: "0123", LogLevel: "debug", LogFormat: "json", StatsInterval: "5m", EventsKeep: "168h",
	}
	if !c.Equal(want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestBadConfig(t *testing.T) {
	long := strings.Repeat("x", 80)
	for name, tt := range map[string]struct {
		file string
		args []string
		want string
	}{
		"unknown key":      {"log_level: info\nnonsense: 1\n", nil, `c.yaml:2: unknown key "nonsense"`},
		"key in capitals":  {"Socket: /x\n", nil, `unknown key "Socket"`},
		"twice":            {"node_id: a\nnode_id: b\n", nil, `c.yaml:2: key "node_id" appears twice, first in line 1`},
		"a wrong value":    {"log_format: text\n\nlog_level: loud\n", nil, `c.yaml:3: log_level "loud" is not one of`},
		"a wrong flag":     {"log_level: info\n", []string{"--log-level", "loud"}, `log_level "loud" is not one of`},
		"a wrong group":    {"socket_group: nosuchgroup\n", nil, `c.yaml:1: socket_group: no group "nosuchgroup"`},
		"a list":           {"socket: [a]\n", nil, `the value of "socket" must be a plain text`},
		"no mapping":       {"- a\n", nil, "a configuration is a list of keys and values"},
		"no YAML":          {"a: b: c\n", nil, "c.yaml"},
		"level":            {"", []string{"--log-level", "loud"}, `log_level "loud"`},
		"format":           {"", []string{"--log-format", "xml"}, `log_format "xml"`},
		"no path":          {"docker_socket: csi.sock\n", nil, `docker_socket "csi.sock" is not an absolute path`},
		"not found so":     {"docker_socket: /run/docker/plugins/csi\n", nil, "does not end in .sock, so docker would not find it"},
		"no address":       {"docker_socket: /" + strings.Repeat("x", 107) + ".sock\n", nil, "and a socket address may have at most 107"},
		"one for both":     {"docker_socket: /run/volagent/volagent.sock\n", nil, "docker_socket and socket are both /run/volagent/volagent.sock"},
		"no duration":      {"stats_interval: often\n", nil, `stats_interval "often" is neither 0 nor a duration of at least 10s`},
		"too often":        {"stats_interval: 1s\n", nil, `stats_interval "1s"`},
		"before now":       {"stats_interval: -1m\n", nil, `stats_interval "-1m"`},
		"no period":        {"events_keep: always\n", nil, `c.yaml:1: events_keep "always" is not a duration of whole hours or days from 1h to 2160h, as 168h, 7d or 1w`},
		"short period":     {"events_keep: 59m\n", nil, `events_keep "59m"`},
		"no time":          {"events_keep: 0h\n", nil, `events_keep "0h"`},
		"negative":         {"events_keep: -24h\n", nil, `events_keep "-24h"`},
		"part of an hour":  {"events_keep: 90m\n", nil, `events_keep "90m"`},
		"long period":      {"events_keep: 2161h\n", nil, `events_keep "2161h"`},
		"many days":        {"events_keep: 91d\n", nil, `events_keep "91d"`},
		"too many days":    {"events_keep: 300000000000d\n", nil, `events_keep "300000000000d"`},
		"part of a day":    {"events_keep: 1.51d\n", nil, `events_keep "1.51d"`},
		"no host":          {"metrics_address: ':9187'\n", nil, `metrics_address ":9187" has no host`},
		"no port":          {"metrics_address: 127.0.0.1\n", nil, `metrics_address "127.0.0.1" is not host:port`},
		"bare IPv6":        {"metrics_address: ::1:9187\n", nil, `metrics_address "::1:9187" is not host:port`},
		"a name":           {"metrics_address: web1:9187\n", nil, "neither an IP address nor localhost"},
		"large port":       {"metrics_address: 127.0.0.1:65536\n", nil, "has no port from 0 to 65535"},
		"named port":       {"metrics_address: 127.0.0.1:http\n", nil, "has no port from 0 to 65535"},
		"relative":         {"plugin_dir: plugins\n", nil, "not an absolute path"},
		"long data dir":    {"", []string{"--data-dir", strings.Repeat("/"+long, 50)}, "Linux accepts 4095"},
		"long name":        {"", []string{"--data-dir", "/srv/" + long + long + long + long}, "a name in"},
		"long runtime dir": {"", []string{"--runtime-dir", "/" + long + "/12345678"}, "socket address"},
		"long socket":      {"", []string{"--socket", "/" + long + long}, "socket address"},
		"long node id":     {"", []string{"--node-id", strings.Repeat(long, 4)}, "CSI allows 256"},
	} {
		if _, err := load(t, tt.file, tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// TestLongestRoots checks that Load accepts the longest paths that the kernel accepts. WarnLong
// must log one warning if a path may be too long for some plugins, and otherwise none.
func TestLongestRoots(t *testing.T) {
	for _, tt := range []struct {
		flag, dir string
		warnings  int
	}{
		{"--log-level", "info", 0},
		{"--data-dir", "/srv/volagent-dat", 0},
		{"--data-dir", "/srv/volagent-data", 1},
		{"--data-dir", strings.Repeat("/"+strings.Repeat("x", 180), 22), 1},
		{"--runtime-dir", "/" + strings.Repeat("x", 64), 0},
		{"--runtime-dir", "/" + strings.Repeat("x", 65), 1},
		{"--runtime-dir", "/" + strings.Repeat("x", 87), 1},
	} {
		c, err := load(t, "# nothing\n", tt.flag, tt.dir)
		if err != nil {
			t.Errorf("%s with %d bytes: %v", tt.flag, len(tt.dir), err)
			continue
		}
		var out bytes.Buffer
		c.WarnLong(hclog.New(&hclog.LoggerOptions{Output: &out}))
		if got := strings.Count(out.String(), "[WARN]"); got != tt.warnings {
			t.Errorf("%s with %d bytes: %d warnings, want %d: %s", tt.flag, len(tt.dir), got, tt.warnings, out.String())
		}
	}
}

// TestCheckConfigPrints checks that Load reads the output of check-config as the same
// configuration.
func TestCheckConfigPrints(t *testing.T) {
	c, err := load(t, "node_id: \"a b\"\nmetrics_address: '[fe80::1%eth0]:9187'\nevents_keep: 30d\n")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := c.Describe(&out); err != nil {
		t.Fatal(err)
	}
	again, err := load(t, out.String())
	if err != nil || !again.Equal(c) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestMetricsAddresses checks the values of metrics_address that the agent accepts.
func TestMetricsAddresses(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1:9187", "1.2.3.4:0", "[::]:9187", "[::1]:9187", "localhost:65535", "[fe80::1%eth0]:1"} {
		if c, err := load(t, "metrics_address: '"+address+"'\n"); err != nil || c.MetricsAddress != address {
			t.Errorf("%q: %v, %+v", address, err, c)
		}
	}
}

// TestEventsKept checks the values of events_keep that the agent accepts.
func TestEventsKept(t *testing.T) {
	for file, want := range map[string]time.Duration{
		"# nothing\n":          7 * 24 * time.Hour,
		"events_keep: 1h\n":    time.Hour,
		"events_keep: 60m\n":   time.Hour,
		"events_keep: 36h\n":   36 * time.Hour,
		"events_keep: 1d\n":    24 * time.Hour,
		"events_keep: 2160h\n": 90 * 24 * time.Hour,
		"events_keep: 90d\n":   90 * 24 * time.Hour,
		"events_keep: 2w\n":    14 * 24 * time.Hour,
		"events_keep: 7200\n":  2 * time.Hour,
	} {
		c, err := load(t, file)
		if err != nil {
			t.Errorf("%q: %v", file, err)
			continue
		}
		if got, err := c.KeepEvents(); err != nil || got != want {
			t.Errorf("%q: %s, %v", file, got, err)
		}
	}

	t.Setenv("VOLAGENT_EVENTS_KEEP", "48h")
	if c, err := load(t, "events_keep: 24h\n"); err != nil || c.EventsKeep != "48h" {
		t.Errorf("with a variable: %q, %v", c.EventsKeep, err)
	}
}
