package container

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/suggest"
)

// ended reports whether a container in a given state uses no volume and is not about to use one. A
// docker container in the state created may be about to start. For podman, this state does not
// matter: podman counts the mounts of a volume, and after a reboot it reports old containers as
// created.
func (r Runtime) ended(state string) bool {
	if state == "created" {
		return r.name == "podman"
	}
	return slices.Contains([]string{"exited", "stopped", "dead", "removing"}, state)
}

// Using returns the names of the containers that use, or may be about to use, one of the runtime's
// volumes. An error means that the use is unknown. It is also an error if another daemon or storage
// answers, because its volume of the same name is a different one.
//
// Podman counts the mounts of a volume. While the count is above zero, podman does not ask the
// plugin to mount the volume for the next container. Such a volume therefore counts as used.
func (r Runtime) Using(ctx context.Context, volume string) (names []string, err error) {
	if names, err = r.containers(ctx, volume); err != nil || len(names) > 0 {
		return names, err
	}

	count, err := r.count(ctx, volume)
	if err != nil || count == 0 {
		return nil, err
	}

	return []string{fmt.Sprintf("podman itself, which counts it as mounted %dx without a container (%s)", count, suggest.Command("podman volume unmount %s", volume))}, nil
}

// count returns the runtime's count of a volume's mounts. It is always 0 for docker, which does not
// count them.
func (r Runtime) count(ctx context.Context, volume string) (uint, error) {
	out, err := r.run(ctx, command{args: []string{"volume", "inspect", volume}, limit: quick})
	switch {
	case err != nil && r.name == "podman" && strings.Contains(err.Error(), "no such volume"):
		return 0, nil // podman no longer has such a volume, for example after a reset
	case err != nil:
		return 0, err
	}

	var all []struct {
		Driver     string
		MountCount uint
	}

	switch err := json.Unmarshal([]byte(out), &all); {
	case err != nil:
		return 0, fmt.Errorf("cannot read the answer of %s about volume %s: %w", r.name, volume, err)
	case len(all) != 1:
		return 0, fmt.Errorf("%s returned %d answers about volume %s", r.name, len(all), volume)
	case all[0].Driver == "local":
		return 0, fmt.Errorf("volume %s of this %s is a different volume on a local disk: DOCKER_HOST or a context selects another daemon", volume, r.name)
	}

	return all[0].MountCount, nil
}

// containers returns the names of the containers that have a volume and have not ended.
func (r Runtime) containers(ctx context.Context, volume string) (names []string, err error) {
	args := []string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "volume=" + volume}
	if r.name == "podman" {
		args = append(args, "--sync") // without --sync, a container whose monitor was killed seems to run forever
	}

	out, err := r.run(ctx, command{args: args, limit: quick})
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil, err
	}

	out, err = r.run(ctx, command{args: append([]string{"container", "inspect"}, ids...), limit: quick})
	if err != nil {
		// A container may have ended since the first command, so the caller must ask again later.
		return nil, err
	}

	var all []struct {
		Name  string
		State struct{ Status string }
	}

	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("cannot read the answer of %s about %d containers: %w", r.name, len(ids), err)
	}
	if len(all) != len(ids) {
		return nil, fmt.Errorf("%s returned %d answers about %d containers", r.name, len(all), len(ids))
	}

	for _, c := range all {
		if !r.ended(c.State.Status) {
			names = append(names, strings.TrimPrefix(c.Name, "/"))
		}
	}

	return names, nil
}

// LocalVolume is a volume of the runtime's own driver "local": a directory on the host's disk.
type LocalVolume struct{ Name, Path string }

// LocalVolumes lists the volumes of the runtime's own driver "local".
func (r Runtime) LocalVolumes(ctx context.Context) (all []LocalVolume, err error) {
	out, err := r.run(ctx, command{args: []string{"volume", "ls", "--filter", "driver=local", "--format", "{{.Name}}\t{{.Mountpoint}}"}, limit: quick})
	if err != nil {
		return nil, err
	}

	for line := range strings.Lines(out) {
		name, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if name != "" {
			all = append(all, LocalVolume{name, path})
		}
	}

	return all, nil
}

// Installed reports whether this host has the runtime's program.
func (r Runtime) Installed() bool {
	_, err := exec.LookPath(r.name)
	return err == nil
}

// podmanTimeout is the default time that podman waits for an answer of a volume plugin
// (containers.conf(5), volume_plugin_timeout).
const podmanTimeout = 5 * time.Second

var timeoutLine = regexp.MustCompile(`^\s*volume_plugin_timeout\s*=\s*"?([0-9]+)"?\s*(#.*)?$`)

// PluginTimeout returns the time that podman waits for an answer of a volume plugin. It reads
// podman's configuration files on the host. A later file overrides an earlier one.
func PluginTimeout() time.Duration {
	files := []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"}
	more, _ := filepath.Glob("/etc/containers/containers.conf.d/*.conf") // the pattern is valid
	files = append(files, more...)
	if conf := os.Getenv("CONTAINERS_CONF"); conf != "" {
		files = []string{conf}
	}

	return pluginTimeout(files)
}

func pluginTimeout(files []string) time.Duration {
	timeout := podmanTimeout
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			continue // each file is optional
		}

		for lines := bufio.NewScanner(f); lines.Scan(); {
			if m := timeoutLine.FindStringSubmatch(lines.Text()); m != nil {
				if n, err := strconv.Atoi(m[1]); err == nil && n > 0 && n < 1e6 {
					timeout = time.Duration(n) * time.Second
				}
			}
		}

		_ = f.Close() // the file was only read
	}

	return timeout
}
