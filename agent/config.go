package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

// DefaultConfigFile is read if it exists and --config names no other.
const DefaultConfigFile = "/etc/volagent/volagent.yaml"

// Config is the agent's configuration. Each field can be set by a flag, by a
// VOLAGENT_* variable, and by a key of the file, the first of these wins.
type Config struct {
	DataDir     string `mapstructure:"data_dir"`
	RuntimeDir  string `mapstructure:"runtime_dir"`
	Socket      string `mapstructure:"socket"`       // default <runtime_dir>/volagent.sock
	SocketGroup string `mapstructure:"socket_group"` // its members are root-equivalent
	PluginDir   string `mapstructure:"plugin_dir"`
	VolumesDir  string `mapstructure:"volumes_dir"`
	NodeID      string `mapstructure:"node_id"` // default the host name, kept from the first start
	LogLevel    string `mapstructure:"log_level"`
	LogFormat   string `mapstructure:"log_format"`
	// StatsInterval is how often plugins are asked how mounted volumes are; "0" is
	// never.
	StatsInterval string `mapstructure:"stats_interval"`
	// MetricsAddress is host:port where everybody may scrape; empty is nowhere but on
	// the socket.
	MetricsAddress string `mapstructure:"metrics_address"`
	// DockerSocket is where docker and podman find their volume plugin; empty: nowhere.
	DockerSocket string `mapstructure:"docker_socket"`
}

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
	{"volumes_dir", "/etc/volagent/volumes.d", "directory of volume files that are registered at start", true},
	{"node_id", "", "CSI node id (default the host name at the first start)", true},
	{"log_level", "info", "trace, debug, info, warn or error", true},
	{"log_format", "text", "text or json", true},
	{"stats_interval", "0", "how often plugins are asked how mounted volumes are; 0 is never", false},
	{"metrics_address", "", "host:port where everybody may read the metrics (default: only on the socket)", false},
	{"docker_socket", "", "path of the socket for docker and podman; empty is none", false},
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// addFlags declares the flags of the configuration.
func addFlags(fl *pflag.FlagSet) {
	fl.String("config", "", "configuration file (default "+DefaultConfigFile+", if it exists)")
	for _, s := range settings {
		if s.flag {
			fl.String(flagName(s.key), "", withDefault(s.usage, s.value))
		}
	}
}

func withDefault(usage, value string) string {
	if value == "" {
		return usage
	}
	return usage + " (default " + value + ")"
}

// loadConfig reads the configuration anew. An unknown key is an error with its
// name and line.
func loadConfig(fl *pflag.FlagSet) (Config, error) {
	v := viper.New()
	v.SetEnvPrefix("volagent")
	v.AutomaticEnv()
	for _, s := range settings {
		v.SetDefault(s.key, s.value)
		if f := fl.Lookup(flagName(s.key)); s.flag && f.Changed {
			v.Set(s.key, f.Value.String())
		}
	}
	if err := readFile(v, fl); err != nil {
		return Config{}, err
	}
	var c Config
	if err := v.Unmarshal(&c); err != nil {
		return Config{}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}
	return c, c.check()
}

// readFile gives viper the file as we read it: viper itself merges what is
// misspelt in silence, and makes a number of a node id such as 0123.
func readFile(v *viper.Viper, fl *pflag.FlagSet) error {
	path := DefaultConfigFile
	if f := fl.Lookup("config"); f.Changed {
		path = f.Value.String()
	} else if env := os.Getenv("VOLAGENT_CONFIG"); env != "" {
		path = env
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultConfigFile {
		return nil
	}
	if err != nil {
		return volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}
	values, err := parse(path, raw)
	if err != nil {
		return err
	}
	return v.MergeConfigMap(values)
}

// parse reads a file's keys and values as they stand. It refuses keys that are
// unknown or stand twice, and values that are not plain.
func parse(path string, raw []byte) (map[string]any, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, volume.Errorf(volume.ErrInvalid, "%s: %v", path, err)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, volume.Errorf(volume.ErrInvalid, "%s:%d: a configuration is a list of keys and values", path, root.Line)
	}
	values := map[string]any{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		known := slices.ContainsFunc(settings, func(s setting) bool { return s.key == key.Value })
		switch {
		case !known:
			return nil, volume.Errorf(volume.ErrInvalid, "%s:%d: unknown key %q", path, key.Line, key.Value).WithHint("known keys: %s", keys())
		case values[key.Value] != nil:
			return nil, volume.Errorf(volume.ErrInvalid, "%s:%d: key %q stands there twice", path, key.Line, key.Value)
		case value.Kind != yaml.ScalarNode:
			return nil, volume.Errorf(volume.ErrInvalid, "%s:%d: the value of %q must be a plain text", path, value.Line, key.Value)
		}
		if values[key.Value] = value.Value; value.Tag == "!!null" {
			delete(values, key.Value) // left open: the default
		}
	}
	return values, nil
}

func keys() string {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.key
	}
	return strings.Join(names, ", ")
}

// maxSocket is what sockaddr_un takes, less the terminating zero.
const maxSocket = 107

// check fills in what follows from other keys and refuses what cannot work.
func (c *Config) check() error {
	if c.Socket == "" {
		c.Socket = filepath.Join(c.RuntimeDir, "volagent.sock")
	}
	for name, path := range map[string]string{"data_dir": c.DataDir, "runtime_dir": c.RuntimeDir, "socket": c.Socket, "plugin_dir": c.PluginDir, "volumes_dir": c.VolumesDir} {
		if !filepath.IsAbs(path) {
			return volume.Errorf(volume.ErrInvalid, "%s %q is not an absolute path", name, path)
		}
	}
	c.DataDir, c.RuntimeDir = filepath.Clean(c.DataDir), filepath.Clean(c.RuntimeDir)
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		return volume.Errorf(volume.ErrInvalid, "log_level %q is not one of trace, debug, info, warn, error", c.LogLevel)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return volume.Errorf(volume.ErrInvalid, "log_format %q is neither text nor json", c.LogFormat)
	}
	if _, err := c.statsInterval(); err != nil {
		return err
	}
	if err := c.checkMetricsAddress(); err != nil {
		return err
	}
	if len(c.NodeID) > 256 {
		return volume.Errorf(volume.ErrInvalid, "node_id has %d bytes; CSI allows 256", len(c.NodeID))
	}
	if longest := filepath.Join(c.RuntimeDir, "plugins", strings.Repeat("x", 24), "csi.sock"); len(longest) > maxSocket {
		return volume.Errorf(volume.ErrInvalid, "runtime_dir %s is too long: sockets below it could have %d bytes, and %d is what a socket address takes", c.RuntimeDir, len(longest), maxSocket)
	}
	if err := c.checkDockerSocket(); err != nil {
		return err
	}
	if len(c.Socket) > maxSocket {
		return volume.Errorf(volume.ErrInvalid, "socket %s has %d bytes, and %d is what a socket address takes", c.Socket, len(c.Socket), maxSocket)
	}
	return volmgr.CheckRoot(c.mountRoot())
}

// checkDockerSocket refuses what is no path of a socket for docker: it finds plugins by
// the names of the files in one directory.
func (c *Config) checkDockerSocket() error {
	path := c.DockerSocket
	switch {
	case path == "":
		return nil
	case !filepath.IsAbs(path):
		return volume.Errorf(volume.ErrInvalid, "docker_socket %q is not an absolute path", path)
	case len(path) > maxSocket:
		return volume.Errorf(volume.ErrInvalid, "docker_socket %s has %d bytes, and %d is what a socket address takes", path, len(path), maxSocket)
	case !strings.HasSuffix(path, ".sock"):
		return volume.Errorf(volume.ErrInvalid, "docker_socket %s does not end in .sock, so docker would not find it", path).
			WithHint("/run/docker/plugins/csi.sock")
	case filepath.Clean(path) == filepath.Clean(c.Socket):
		return volume.Errorf(volume.ErrInvalid, "docker_socket and socket are both %s", path)
	}
	return nil
}

// leastStatsInterval spares plugins of remote storage, whose answers may be dear.
const leastStatsInterval = 10 * time.Second

func (c *Config) statsInterval() (time.Duration, error) {
	d, err := time.ParseDuration(c.StatsInterval)
	if err != nil || d != 0 && d < leastStatsInterval {
		return 0, volume.Errorf(volume.ErrInvalid, "stats_interval %q is neither 0 nor a duration of at least %s, as 5m", c.StatsInterval, leastStatsInterval)
	}
	return d, nil
}

// checkMetricsAddress wants an address and no name: with a name it would be a matter
// of the resolver, at boot, where everybody can scrape.
func (c *Config) checkMetricsAddress() error {
	if c.MetricsAddress == "" {
		return nil
	}
	bad := func(why string) error {
		return volume.Errorf(volume.ErrInvalid, "metrics_address %q %s", c.MetricsAddress, why).
			WithHint("127.0.0.1:9187 and [::1]:9187 are for this host alone, [::]:9187 is for everybody")
	}
	host, port, err := net.SplitHostPort(c.MetricsAddress)
	if err != nil {
		return bad("is not host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return bad("has no port from 0 to 65535")
	}
	if host == "" {
		return bad("has no host")
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		return bad("has a host that is neither an IP address nor localhost")
	}
	return nil
}

func (c *Config) mountRoot() string { return filepath.Join(c.DataDir, "csi") }

// logger writes to standard error. The journal adds the time by itself.
func (c *Config) logger(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "volagent", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogFormat == "json",
		Output: w, DisableTime: os.Getenv("JOURNAL_STREAM") != "",
	})
}

// describe prints the configuration in force, as a file that would give it.
func (c *Config) describe(w io.Writer) error {
	for _, kv := range [][2]string{
		{"data_dir", c.DataDir}, {"runtime_dir", c.RuntimeDir}, {"socket", c.Socket}, {"socket_group", c.SocketGroup},
		{"plugin_dir", c.PluginDir}, {"volumes_dir", c.VolumesDir}, {"node_id", c.NodeID}, {"log_level", c.LogLevel}, {"log_format", c.LogFormat},
		{"stats_interval", c.StatsInterval}, {"metrics_address", c.MetricsAddress}, {"docker_socket", c.DockerSocket},
	} {
		if _, err := fmt.Fprintf(w, "%s: %q\n", kv[0], kv[1]); err != nil {
			return err
		}
	}
	return nil
}
