// Package config reads and checks the configuration of the agent.
package config

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// DefaultFile is the configuration file that the agent reads if --config names no other file. The
// file need not exist.
const DefaultFile = "/etc/volagent/volagent.yaml"

// Config is the agent's configuration. Each field except Cluster can be set by a flag, by a
// VOLAGENT_* variable, and by a key of the file. A flag overrides a variable, and a variable
// overrides the file. Cluster comes only from a file.
type Config struct {
	DataDir    string `mapstructure:"data_dir"`
	RuntimeDir string `mapstructure:"runtime_dir"`
	Socket     string `mapstructure:"socket"` // the default is <runtime_dir>/volagent.sock
	// SocketGroup is the group whose members may change the agent's state. They have the same power
	// as root.
	SocketGroup string `mapstructure:"socket_group"`
	PluginDir   string `mapstructure:"plugin_dir"`
	FenceDir    string `mapstructure:"fence_dir"` // the directory of the hooks that switch hosts off
	VolumesDir  string `mapstructure:"volumes_dir"`
	ClassesDir  string `mapstructure:"classes_dir"` // the directory of the class files
	NodeID      string `mapstructure:"node_id"`     // default: the host name at the first start
	LogLevel    string `mapstructure:"log_level"`
	LogFormat   string `mapstructure:"log_format"`

	// StatsInterval is how often the agent asks plugins for the usage of mounted volumes; "0"
	// disables these requests.
	StatsInterval string `mapstructure:"stats_interval"`

	// EventsKeep is how long the agent keeps events in files, as a text such as "168h" or "7d".
	EventsKeep string `mapstructure:"events_keep"`

	// MetricsAddress is the host:port at which any client can read the metrics. If it is empty, the
	// agent serves metrics only on its socket.
	MetricsAddress string `mapstructure:"metrics_address"`

	// DockerSocket is the path of the socket on which docker and podman use the agent as a volume
	// plugin. If it is empty, they cannot use the agent. SharedDockerSocket is derived from it.
	DockerSocket string `mapstructure:"docker_socket"`

	// Cluster says how the agent reaches the etcd of its cluster. It is the zero value on a host
	// without a cluster. viper does not see it.
	Cluster Cluster `mapstructure:"-"`
}

// Equal reports whether two configurations have the same values.
func (c Config) Equal(d Config) bool { return reflect.DeepEqual(c, d) }

// setting is one key of the configuration.
type setting struct {
	key, value, usage string
	flag              bool
}

var settings = []setting{
	{"data_dir", "/var/lib/volagent", "directory of the state database and of all mounts", true},
	{"runtime_dir", "/run/volagent", "directory of sockets", true},
	{"socket", "", "path of the API socket (default <runtime-dir>/volagent.sock)", true},
	{"socket_group", "root", "group that owns the socket; its members are root-equivalent", false},
	{"plugin_dir", "/etc/volagent/plugins.d", "directory of plugin files", true},
	{"fence_dir", "/etc/volagent/fence.d", "directory of hooks that switch other hosts off", true},
	{"volumes_dir", "/etc/volagent/volumes.d", "directory of volume files that the agent registers at start", true},
	{"classes_dir", "/etc/volagent/classes.d", "directory of class files", true},
	{"node_id", "", "CSI node id (default the host name at the first start)", true},
	{"log_level", "info", "log level: trace, debug, info, warn or error", true},
	{"log_format", "text", "log format: text or json", true},
	{"stats_interval", "5m", "interval at which plugins report on mounted volumes; 0 disables it", false},
	{"events_keep", "168h", "how long the agent keeps events", false},
	{"metrics_address", "", "host:port at which any client may read the metrics (default: only on the socket)", false},
	{"docker_socket", "", "path of the socket for docker and podman; empty for none", false},
}

// sharedSuffix is the end of the name of docker's plugin for shared volumes.
const sharedSuffix = "-shared.sock"

// SharedDockerSocket returns the path of the socket on which docker and podman find shared volumes:
// beside docker_socket, with a name of its own. It is empty without a cluster or without
// docker_socket.
func (c *Config) SharedDockerSocket() string {
	if c.DockerSocket == "" || !c.Cluster.Enabled() {
		return ""
	}
	return strings.TrimSuffix(c.DockerSocket, ".sock") + sharedSuffix
}

// Logger returns a logger that writes to w. If the output goes to the journal, the logger omits the
// time, because the journal adds it.
func (c *Config) Logger(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "volagent", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogFormat == "json",
		Output: w, DisableTime: os.Getenv("JOURNAL_STREAM") != "",
	})
}

// Describe prints the effective configuration in the format of a configuration file.
func (c *Config) Describe(w io.Writer) error {
	for _, kv := range [][2]string{
		{"data_dir", c.DataDir}, {"runtime_dir", c.RuntimeDir}, {"socket", c.Socket}, {"socket_group", c.SocketGroup},
		{"plugin_dir", c.PluginDir}, {"fence_dir", c.FenceDir}, {"volumes_dir", c.VolumesDir}, {"classes_dir", c.ClassesDir}, {"node_id", c.NodeID}, {"log_level", c.LogLevel}, {"log_format", c.LogFormat},
		{"stats_interval", c.StatsInterval}, {"events_keep", c.EventsKeep}, {"metrics_address", c.MetricsAddress}, {"docker_socket", c.DockerSocket},
	} {
		if _, err := fmt.Fprintf(w, "%s: %q\n", kv[0], kv[1]); err != nil {
			return err
		}
	}

	return c.Cluster.describe(w)
}
