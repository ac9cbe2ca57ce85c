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

// ended are the states in which a container uses no volume, and is not about to: one that
// was just created may be. Podman counts what such a one has mounted, and a container is
// created again to podman when the host has been down under it.
func (r Runtime) ended(state string) bool {
	if state == "created" {
		return r.name == "podman"
	}
	return slices.Contains([]string{"exited", "stopped", "dead", "removing"}, state)
}

// Using returns the names of the containers that use a volume of the runtime's, or may
// be about to. An error is no answer; nor is the word of a daemon, or a storage, in which
// the volume is another one. Podman counts who has a volume mounted: as long as that is
// more than nobody, it does not ask to have it mounted for the next container.
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

// count is how often the runtime says that a volume is mounted; docker does not count.
func (r Runtime) count(ctx context.Context, volume string) (uint, error) {
	out, err := r.run(ctx, command{args: []string{"volume", "inspect", volume}, limit: quick})
	switch {
	case err != nil && r.name == "podman" && strings.Contains(err.Error(), "no such volume"):
		return 0, nil // it is gone, as after a reset; docker would have asked its plugins
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

// containers are those that have a volume, and are not over.
func (r Runtime) containers(ctx context.Context, volume string) (names []string, err error) {
	args := []string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "volume=" + volume}
	if r.name == "podman" {
		args = append(args, "--sync") // else a container whose monitor was killed runs for ever
	}
	out, err := r.run(ctx, command{args: args, limit: quick})
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	out, err = r.run(ctx, command{args: append([]string{"container", "inspect"}, ids...), limit: quick})
	if err != nil {
		return nil, err // one may have gone meanwhile; the next look tells
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

// LocalVolume is a volume of the runtime's own driver "local", which is a directory on the
// host's disk.
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

// podmanTimeout is how long podman waits for an answer of a volume plugin, unless its
// configuration says otherwise (containers.conf(5), volume_plugin_timeout).
const podmanTimeout = 5 * time.Second

var timeoutLine = regexp.MustCompile(`^\s*volume_plugin_timeout\s*=\s*"?([0-9]+)"?\s*(#.*)?$`)

// PluginTimeout is how long podman waits for a volume plugin, as far as its files for the
// host say so: the later one of them counts.
func PluginTimeout() time.Duration {
	files := []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"}
	more, _ := filepath.Glob("/etc/containers/containers.conf.d/*.conf") // the pattern is good
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
			continue // there need be none
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
