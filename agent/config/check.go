package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/humantime"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

// check returns an error for the first invalid value. The error contains the file and line of the
// value.
func (c *Config) check(file configFile) error {
	for _, one := range []struct {
		key   string
		check func() error
	}{
		{"data_dir", func() error { return absolute("data_dir", &c.DataDir) }},
		{"data_dir", func() error { return volmgr.CheckRoot(c.MountRoot()) }},
		{"runtime_dir", c.checkRuntimeDir},
		{"socket", c.checkSocket},
		{"socket_group", func() error { _, err := listen.GroupID(c.SocketGroup); return err }},
		{"plugin_dir", func() error { return absolute("plugin_dir", &c.PluginDir) }},
		{"fence_dir", func() error { return absolute("fence_dir", &c.FenceDir) }},
		{"volumes_dir", func() error { return absolute("volumes_dir", &c.VolumesDir) }},
		{"classes_dir", func() error { return absolute("classes_dir", &c.ClassesDir) }},
		{"node_id", c.checkNodeID},
		{"log_level", c.checkLogLevel},
		{"log_format", c.checkLogFormat},
		{"stats_interval", func() error { _, err := c.SampleEvery(); return err }},
		{"events_keep", func() error { _, err := c.KeepEvents(); return err }},
		{"metrics_address", c.checkMetricsAddress},
		{"docker_socket", c.checkDockerSocket},
	} {
		if err := one.check(); err != nil {
			return file.at(one.key, err)
		}
	}

	return nil
}

func absolute(key string, path *string) error {
	if !filepath.IsAbs(*path) {
		return volume.Errorf(volume.ErrInvalid, "%s %q is not an absolute path", key, *path)
	}
	*path = filepath.Clean(*path)
	return nil
}

func (c *Config) checkRuntimeDir() error {
	if err := absolute("runtime_dir", &c.RuntimeDir); err != nil {
		return err
	}
	if shortest := c.pluginSocket(1); shortest > listen.MaxPath {
		return volume.Errorf(volume.ErrInvalid, "runtime_dir %s is too long: sockets below it have at least %d bytes, and a socket address may have at most %d", c.RuntimeDir, shortest, listen.MaxPath)
	}

	return nil
}

func (c *Config) checkSocket() error {
	if err := absolute("socket", &c.Socket); err != nil {
		return err
	}
	if len(c.Socket) > listen.MaxPath {
		return volume.Errorf(volume.ErrInvalid, "socket %s has %d bytes, and a socket address may have at most %d", c.Socket, len(c.Socket), listen.MaxPath)
	}

	return nil
}

func (c *Config) checkNodeID() error {
	if len(c.NodeID) > 256 {
		return volume.Errorf(volume.ErrInvalid, "node_id has %d bytes; CSI allows 256", len(c.NodeID))
	}
	return nil
}

func (c *Config) checkLogLevel() error {
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		return volume.Errorf(volume.ErrInvalid, "log_level %q is not one of trace, debug, info, warn, error", c.LogLevel)
	}
	return nil
}

func (c *Config) checkLogFormat() error {
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return volume.Errorf(volume.ErrInvalid, "log_format %q is neither text nor json", c.LogFormat)
	}
	return nil
}

// pluginSocket returns the length of a plugin's socket path, in bytes. The argument is the length
// of the name of the plugin's directory.
func (c *Config) pluginSocket(name int) int {
	return len(filepath.Join(c.RuntimeDir, "plugins", strings.Repeat("x", name), "csi.sock"))
}

// longestName is the maximum length of the name of a plugin's directory, in bytes.
const longestName = 24

// WarnLong logs a warning if the data dir or the runtime dir has a path that is too long for some
// plugins.
func (c *Config) WarnLong(log hclog.Logger) {
	if longest := volmgr.LongestPath(c.MountRoot()); longest > volmgr.MaxPluginPath {
		log.Warn("data_dir is long: paths of volumes may be longer than CSI plugins must accept; most plugins accept them",
			"data_dir", c.DataDir, "longest_path", longest, "must_accept", volmgr.MaxPluginPath)
	}

	if longest := c.pluginSocket(longestName); longest > listen.MaxPath {
		log.Warn("runtime_dir is long: a plugin with a long id cannot be started, because its socket's path is too long",
			"runtime_dir", c.RuntimeDir, "longest_id", longestName-(longest-listen.MaxPath))
	}
}

// checkDockerSocket returns an error if docker would not find the volume plugin at the configured
// path. Docker finds plugins by the names of the files in one directory.
func (c *Config) checkDockerSocket() error {
	path := c.DockerSocket
	switch {
	case path == "":
		return nil
	case !filepath.IsAbs(path):
		return volume.Errorf(volume.ErrInvalid, "docker_socket %q is not an absolute path", path)
	case len(path) > listen.MaxPath:
		return volume.Errorf(volume.ErrInvalid, "docker_socket %s has %d bytes, and a socket address may have at most %d", path, len(path), listen.MaxPath)
	case !strings.HasSuffix(path, ".sock"):
		return volume.Errorf(volume.ErrInvalid, "docker_socket %s does not end in .sock, so docker would not find it", path).
			WithHint("/run/docker/plugins/csi.sock")
	case len(c.SharedDockerSocket()) > listen.MaxPath:
		return volume.Errorf(volume.ErrInvalid, "docker_socket %s is too long: the socket for shared volumes beside it is %s, and a socket address may have at most %d bytes",
			path, c.SharedDockerSocket(), listen.MaxPath)
	case filepath.Clean(path) == filepath.Clean(c.Socket):
		return volume.Errorf(volume.ErrInvalid, "docker_socket and socket are both %s", path)
	}

	return nil
}

// leastStatsInterval is the minimum of stats_interval. For each report, a plugin of remote storage
// may have to send an expensive request.
const leastStatsInterval = 10 * time.Second

// SampleEvery returns the value of stats_interval; 0 disables the reports.
func (c *Config) SampleEvery() (time.Duration, error) {
	d, err := humantime.ParseDuration(c.StatsInterval)
	if err != nil || d != 0 && d < leastStatsInterval {
		return 0, volume.Errorf(volume.ErrInvalid, "stats_interval %q is neither 0 nor a duration of at least %s, as 300, 300s or 5m", c.StatsInterval, leastStatsInterval)
	}
	return d, nil
}

// mostEventDays is the maximum of events_keep, in days. The agent keeps one file of events or more
// for each day.
const mostEventDays = 90

// KeepEvents returns the value of events_keep. It is from an hour to mostEventDays, in whole hours.
func (c *Config) KeepEvents() (time.Duration, error) {
	const most = mostEventDays * 24 * time.Hour
	d, err := humantime.ParseDuration(c.EventsKeep)
	if err != nil || d < time.Hour || d > most || d%time.Hour != 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "events_keep %q is not a duration of whole hours or days from 1h to %dh, as 168h, 7d or 1w", c.EventsKeep, most/time.Hour)
	}
	return d, nil
}

// checkMetricsAddress returns an error if the host is neither an IP address nor localhost. For any
// other name, the resolver would choose the address at boot, and so decide which clients can
// connect.
func (c *Config) checkMetricsAddress() error {
	if c.MetricsAddress == "" {
		return nil
	}

	bad := func(why string) error {
		return volume.Errorf(volume.ErrInvalid, "metrics_address %q %s", c.MetricsAddress, why).
			WithHint("127.0.0.1:9187 and [::1]:9187 accept only this host; [::]:9187 accepts all hosts")
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
