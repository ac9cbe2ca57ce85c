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

// ended reports whether a container in the given state neither uses a volume nor is about to use
// one. A docker container in the state "created" may be about to start. For podman, the state
// "created" counts as ended: podman itself counts the mounts of a volume, and after a reboot it
// reports old containers as created.
func (r Runtime) ended(state string) bool {
	if state == "created" {
		return r.name == "podman"
	}
	return slices.Contains([]string{"exited", "stopped", "dead", "removing"}, state)
}

// Using returns the names of the containers that use, or may be about to use, one of the runtime's
// volumes. If Using returns an error, the caller must assume that the volume may be in use. Using
// also returns an error if the answer comes from another daemon or storage, because a volume of the
// same name there is a different volume.
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

// count returns the number of mounts that the runtime has counted for a volume. It is always 0 for
// docker, which does not count mounts.
func (r Runtime) count(ctx context.Context, volume string) (uint, error) {
	out, err := r.run(ctx, command{args: []string{"volume", "inspect", volume}, limit: quick})
	switch {
	case err != nil && r.name == "podman" && strings.Contains(err.Error(), "no such volume"):
		// podman does not know the volume any longer, for example after podman system reset
		return 0, nil
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

// containers returns the names of the containers that have a volume mounted and have not ended.
func (r Runtime) containers(ctx context.Context, volume string) (names []string, err error) {
	users, err := r.Users(ctx, volume)
	for _, u := range users {
		if !u.Ended {
			names = append(names, u.Name)
		}
	}
	return names, err
}

// LocalVolume is a volume of the runtime's own driver "local". Path is the volume's directory on
// the host's disk.
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

// podmanTimeout is podman's default time limit for an answer of a volume plugin
// (containers.conf(5), volume_plugin_timeout).
const podmanTimeout = 5 * time.Second

var timeoutLine = regexp.MustCompile(`^\s*volume_plugin_timeout\s*=\s*"?([0-9]+)"?\s*(#.*)?$`)

// PluginTimeout returns podman's time limit for an answer of a volume plugin. It reads podman's
// configuration files on the host. A later file overrides an earlier one.
func PluginTimeout() time.Duration {
	files := []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"}
	// Glob fails only for an invalid pattern, and this pattern is valid
	more, _ := filepath.Glob("/etc/containers/containers.conf.d/*.conf")
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
			continue // each file may be missing
		}

		for lines := bufio.NewScanner(f); lines.Scan(); {
			if m := timeoutLine.FindStringSubmatch(lines.Text()); m != nil {
				if n, err := strconv.Atoi(m[1]); err == nil && n > 0 && n < 1e6 {
					timeout = time.Duration(n) * time.Second
				}
			}
		}

		_ = f.Close() // closing cannot lose data, because the file was only read
	}

	return timeout
}
