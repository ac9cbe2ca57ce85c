package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrNoVolume is returned if the runtime has no volume with the name.
var ErrNoVolume = errors.New("no such volume")

// Volume is a volume of any of the runtime's drivers.
type Volume struct {
	Name   string
	Driver string
	// Path is the volume's directory on the host. It may be empty, or may not exist, while no container
	// uses a volume of a plugin.
	Path    string
	Labels  map[string]string
	Options map[string]string
}

// FindVolume returns the volume with the given name. If there is no such volume, the error wraps
// ErrNoVolume.
func (r Runtime) FindVolume(ctx context.Context, name string) (Volume, error) {
	out, err := r.run(ctx, command{args: []string{"volume", "inspect", name}, limit: quick})
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "no such volume") {
		return Volume{}, fmt.Errorf("%w: %w", ErrNoVolume, err)
	}
	if err != nil {
		return Volume{}, err
	}

	var all []struct {
		Name, Driver, Mountpoint string
		Labels, Options          map[string]string
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return Volume{}, fmt.Errorf("cannot read the answer of %s about volume %s: %w", r.name, name, err)
	}
	if len(all) != 1 {
		return Volume{}, fmt.Errorf("%s returned %d answers about volume %s", r.name, len(all), name)
	}

	v := all[0]
	return Volume{Name: v.Name, Driver: v.Driver, Path: v.Mountpoint, Labels: v.Labels, Options: v.Options}, nil
}

// User is a container that mounts a volume when the container starts.
type User struct {
	Name  string
	State string // in the runtime's words, such as "running"
	// Ended is true if the container neither uses the volume nor is about to use it.
	Ended bool
	// ReadOnly is true if the container cannot write to the volume.
	ReadOnly bool
}

// Users returns the containers of a volume, in any state. If Users returns an error, the caller must
// assume that the volume may be in use.
func (r Runtime) Users(ctx context.Context, volume string) (users []User, err error) {
	args := []string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "volume=" + volume}
	if r.name == "podman" {
		// without --sync, podman reports a container whose monitor was killed as running forever
		args = append(args, "--sync")
	}

	out, err := r.run(ctx, command{args: args, limit: quick})
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil, err
	}

	out, err = r.run(ctx, command{args: append([]string{"container", "inspect"}, ids...), limit: quick})
	if err != nil {
		// The command also fails if one of the containers was removed after the first command. The
		// caller must then ask again later.
		return nil, err
	}

	var all []struct {
		Name   string
		State  struct{ Status string }
		Mounts []struct {
			Name string
			RW   bool
		}
	}

	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("cannot read the answer of %s about %d containers: %w", r.name, len(ids), err)
	}
	if len(all) != len(ids) {
		return nil, fmt.Errorf("%s returned %d answers about %d containers", r.name, len(all), len(ids))
	}

	for _, c := range all {
		u := User{Name: strings.TrimPrefix(c.Name, "/"), State: c.State.Status, Ended: r.ended(c.State.Status)}
		found, writes := false, false
		for _, m := range c.Mounts {
			if m.Name == volume {
				found, writes = true, writes || m.RW
			}
		}
		u.ReadOnly = found && !writes
		users = append(users, u)
	}

	return users, nil
}

// Endpoint returns the URL of the daemon that the docker command uses. DOCKER_HOST or a context
// selects it.
func (r Runtime) Endpoint(ctx context.Context) (string, error) {
	out, err := r.run(ctx, command{args: []string{"context", "inspect", "--format", "{{.Endpoints.docker.Host}}"}, limit: quick})
	return strings.TrimSpace(out), err
}
