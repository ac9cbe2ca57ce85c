// Package config reads and checks the configuration of the agent.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/volume"
)

// DefaultFile is read if it exists and --config names no other file.
const DefaultFile = "/etc/volagent/volagent.yaml"

// Config is the agent's configuration. Each field can be set by a flag, by a VOLAGENT_* variable,
// and by a key of the file. A flag overrides a variable, and a variable overrides the file.
type Config struct {
	DataDir     string `mapstructure:"data_dir"`
	RuntimeDir  string `mapstructure:"runtime_dir"`
	Socket      string `mapstructure:"socket"`       // default <runtime_dir>/volagent.sock
	SocketGroup string `mapstructure:"socket_group"` // its members are root-equivalent
	PluginDir   string `mapstructure:"plugin_dir"`
	VolumesDir  string `mapstructure:"volumes_dir"`
	NodeID      string `mapstructure:"node_id"` // default: the host name at the first start
	LogLevel    string `mapstructure:"log_level"`
	LogFormat   string `mapstructure:"log_format"`

	// StatsInterval is the interval at which plugins report on mounted volumes; "0" disables the
	// reports.
	StatsInterval string `mapstructure:"stats_interval"`

	// MetricsAddress is a host:port at which every client may scrape. If it is empty, only the
	// socket serves metrics.
	MetricsAddress string `mapstructure:"metrics_address"`

	// DockerSocket is the path of the volume plugin's socket for docker and podman; empty for none.
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
	{"volumes_dir", "/etc/volagent/volumes.d", "directory of volume files that the agent registers at start", true},
	{"node_id", "", "CSI node id (default the host name at the first start)", true},
	{"log_level", "info", "log level: trace, debug, info, warn or error", true},
	{"log_format", "text", "log format: text or json", true},
	{"stats_interval", "5m", "interval at which plugins report on mounted volumes; 0 disables it", false},
	{"metrics_address", "", "host:port at which any client may read the metrics (default: only on the socket)", false},
	{"docker_socket", "", "path of the socket for docker and podman; empty for none", false},
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// AddFlags declares the flags of the configuration.
func AddFlags(fl *pflag.FlagSet) {
	fl.String("config", "", "configuration file (default "+DefaultFile+", if it exists)")
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

// Load reads the configuration from the flags, the environment and the file. The error for a mistake names its file, line and key.
func Load(fl *pflag.FlagSet) (Config, error) {
	v := viper.New()
	v.SetEnvPrefix("volagent")
	v.AutomaticEnv()
	file, mistake := readFile(fl)

	for _, s := range settings {
		v.SetDefault(s.key, s.value)
		if f := fl.Lookup(flagName(s.key)); s.flag && f.Changed {
			v.Set(s.key, f.Value.String())
			delete(file.lines, s.key)
		} else if os.Getenv("VOLAGENT_"+strings.ToUpper(s.key)) != "" {
			delete(file.lines, s.key)
		}
	}

	if err := v.MergeConfigMap(file.values); err != nil {
		return Config{}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}

	var c Config
	if err := v.Unmarshal(&c); err != nil {
		return Config{}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}

	if c.Socket == "" {
		c.Socket = filepath.Join(c.RuntimeDir, "volagent.sock")
	}
	if mistake == nil {
		mistake = c.check(file)
	}

	return c, mistake
}

// configFile holds the contents of a file. If the file has mistakes, it holds the valid part.
type configFile struct {
	path   string
	values map[string]any
	lines  map[string]int // the line of each key
}

// at adds the file and line of a key to an error about the key. Values from flags and the
// environment are not in the file, so their errors stay unchanged.
func (f configFile) at(key string, err error) error {
	line, ok := f.lines[key]
	var de *volume.Error
	if !ok || !errors.As(err, &de) {
		return err
	}

	located := *de
	located.Message = fmt.Sprintf("%s:%d: %s", f.path, line, de.Message)
	return &located
}

// readFile parses the file itself, because viper ignores misspelt keys and turns a node id such as
// 0123 into a number.
func readFile(fl *pflag.FlagSet) (configFile, error) {
	path := DefaultFile
	if f := fl.Lookup("config"); f.Changed {
		path = f.Value.String()
	} else if env := os.Getenv("VOLAGENT_CONFIG"); env != "" {
		path = env
	}

	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultFile {
		return configFile{path: path}, nil
	}
	if err != nil {
		return configFile{path: path}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}

	return parse(path, raw)
}

// parse reads a file's keys and values as plain text. It refuses keys that are unknown or appear
// twice, and values that are not scalars. It returns the first mistake, together with the valid
// keys.
func parse(path string, raw []byte) (configFile, error) {
	file := configFile{path: path, values: map[string]any{}, lines: map[string]int{}}
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return file, nil
		}
		return file, volume.Errorf(volume.ErrInvalid, "%s: %v", path, err)
	}

	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return file, nil
	}
	if root.Kind != yaml.MappingNode {
		return file, volume.Errorf(volume.ErrInvalid, "%s:%d: a configuration is a list of keys and values", path, root.Line)
	}

	var mistake error
	for i := 0; i < len(root.Content); i += 2 {
		if err := file.set(root.Content[i], root.Content[i+1]); err != nil && mistake == nil {
			mistake = err
		}
	}

	return file, mistake
}

// set stores one key and its value.
func (f configFile) set(key, value *yaml.Node) error {
	known := slices.ContainsFunc(settings, func(s setting) bool { return s.key == key.Value })
	switch {
	case !known:
		return f.unknown(key)
	case f.lines[key.Value] != 0:
		return volume.Errorf(volume.ErrInvalid, "%s:%d: key %q appears twice, first in line %d", f.path, key.Line, key.Value, f.lines[key.Value])
	case value.Kind != yaml.ScalarNode:
		return volume.Errorf(volume.ErrInvalid, "%s:%d: the value of %q must be a plain text", f.path, value.Line, key.Value)
	}

	f.lines[key.Value] = key.Line
	if value.Tag != "!!null" { // an empty value means the default
		f.values[key.Value] = value.Value
	}

	return nil
}

// unknown refuses a key, and suggests a known key with a similar name.
func (f configFile) unknown(key *yaml.Node) error {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.key
	}
	err := volume.Errorf(volume.ErrInvalid, "%s:%d: unknown key %q", f.path, key.Line, key.Value)
	if near := spec.Near(key.Value, names); len(near) > 0 {
		return err.WithHint("did you mean %q?", near[0])
	}

	return err.WithHint("known keys: %s", strings.Join(names, ", "))
}

// Logger returns a logger that writes to standard error. It omits the time when the journal adds it.
func (c *Config) Logger(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "volagent", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogFormat == "json",
		Output: w, DisableTime: os.Getenv("JOURNAL_STREAM") != "",
	})
}

// Describe prints the configuration in force, in the format of a configuration file.
func (c *Config) Describe(w io.Writer) error {
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
