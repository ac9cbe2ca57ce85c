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

// ended reports whether a container in this state uses no volume and is not about to use one. A
// docker container that was just created may be about to start. For podman, the mount count shows
// whether a created container has mounted the volume. Also, podman reports containers as created
// again after the host was down.
func (r Runtime) ended(state string) bool {
	if state == "created" {
		return r.name == "podman"
	}
	return slices.Contains([]string{"exited", "stopped", "dead", "removing"}, state)
}

// Using returns the names of the containers that use one of the runtime's volumes, or may be about
// to. An error means that the use is unknown. It is also unknown if the daemon or the storage that
// answers has another volume of that name. Podman counts the mounts of a volume. As long as the
// count is above zero, podman does not ask the plugin to mount the volume for the next container.
func (r Runtime) Using(ctx context.Context, volume string) (names []string, err error) {
	if names, err = r.containers(ctx, volume); err != nil || len(names) > 0 {
		return names, err
	}

	count, err := r.count(ctx, volume)
	if err != nil || count == 0 {
		return nil, err
	}

	return []string{fmt.Sprintf("podman itself, which has it mounted %dx for no container (%s)", count, suggest.Command("podman volume unmount %s", volume))}, nil
}

// count returns how many mounts of a volume the runtime counts. Docker does not count them.
func (r Runtime) count(ctx context.Context, volume string) (uint, error) {
	out, err := r.run(ctx, command{args: []string{"volume", "inspect", volume}, limit: quick})
	switch {
	case err != nil && r.name == "podman" && strings.Contains(err.Error(), "no such volume"):
		return 0, nil // the volume is gone, as after a reset; docker would have asked its plugins
	case err != nil:
		return 0, err
	}

	var all []struct {
		Driver     string
		MountCount uint
	}

	switch err := json.Unmarshal([]byte(out), &all); {
	case err != nil || len(all) != 1:
		return 0, fmt.Errorf("cannot make sense of what %s says of volume %s: %d answers, %w", r.name, volume, len(all), err)
	case all[0].Driver == "local":
		return 0, fmt.Errorf("volume %s of this %s is another one, on its own disk: DOCKER_HOST, or a context, leads elsewhere", volume, r.name)
	}

	return all[0].MountCount, nil
}

// containers returns the containers that have a volume and have not ended.
func (r Runtime) containers(ctx context.Context, volume string) (names []string, err error) {
	args := []string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "volume=" + volume}
	if r.name == "podman" {
		args = append(args, "--sync") // otherwise a container whose monitor was killed seems to run forever
	}

	out, err := r.run(ctx, command{args: args, limit: quick})
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil, err
	}

	out, err = r.run(ctx, command{args: append([]string{"container", "inspect"}, ids...), limit: quick})
	if err != nil {
		return nil, err // a container may have gone meanwhile; the next query shows it
	}

	var all []struct {
		Name  string
		State struct{ Status string }
	}

	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != len(ids) {
		return nil, fmt.Errorf("cannot make sense of what %s says of %d containers: %d answers, %w", r.name, len(ids), len(all), err)
	}

	for _, c := range all {
		if !r.ended(c.State.Status) {
			names = append(names, strings.TrimPrefix(c.Name, "/"))
		}
	}

	return names, nil
}

// LocalVolume is a volume of the runtime's own driver "local", which is a directory on the host's
// disk.
type LocalVolume struct{ Name, Path string }

// LocalVolumes lists the volumes of the runtime's own driver.
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

// Installed reports whether the runtime's command is on this host.
func (r Runtime) Installed() bool {
	_, err := exec.LookPath(r.name)
	return err == nil
}

// podmanTimeout is how long podman waits for an answer of a volume plugin by default
// (containers.conf(5), volume_plugin_timeout).
const podmanTimeout = 5 * time.Second

var timeoutLine = regexp.MustCompile(`^\s*volume_plugin_timeout\s*=\s*"?([0-9]+)"?\s*(#.*)?$`)

// PluginTimeout returns how long podman waits for a volume plugin, according to its configuration
// files on the host. A later file overrides an earlier one.
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
			continue // the file need not exist
		}

		for lines := bufio.NewScanner(f); lines.Scan(); {
			if m := timeoutLine.FindStringSubmatch(lines.Text()); m != nil {
				if n, err := strconv.Atoi(m[1]); err == nil && n > 0 && n < 1e6 {
					timeout = time.Duration(n) * time.Second
				}
			}
		}

		_ = f.Close() // it was only read
	}

	return timeout
}
