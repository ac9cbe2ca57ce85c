// Package dockerimport copies the data of a docker volume to a volume of the agent, and verifies the
// copy.
//
// volctl does this work itself, as root, and not the agent, for these reasons. The user's shell knows
// which docker daemon is meant (DOCKER_HOST, contexts). The agent would need access to the directories
// of docker, and its unit is hardened against that. It would also need a job that outlasts a request,
// with its own records and recovery. volctl only needs a claim on the target, whose owner is its own process. So if
// volctl is interrupted or killed, the agent detaches the claim, and nothing else remains than the
// directory Marker in the target, from which a later run continues. A caller who is not root gains
// nothing: both directories are readable by root only.
//
// The package knows nothing of the agent. It gets the path at which the target is mounted.
package dockerimport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/treecopy"
)

// Source is a docker volume that can be copied.
type Source struct {
	Volume container.Volume
	// Stopped contains the names of the containers that have ended and still name the volume.
	Stopped []string
	runtime container.Runtime
}

// Find returns the docker volume with the given name. It returns an error if the daemon is on another
// host, if the volume's data is not mounted, or if a container could write to the volume.
func Find(ctx context.Context, r container.Runtime, name string) (*Source, error) {
	if os.Geteuid() != 0 {
		return nil, &api.Error{Code: api.CodePermission, Message: "only root can read the data of docker volumes", Hint: "run the same command with sudo"}
	}

	endpoint, err := r.Endpoint(ctx)
	if err != nil {
		return nil, err
	}
	if endpoint != "" && !strings.HasPrefix(endpoint, "unix://") {
		return nil, refused("run the command on the host of that daemon",
			"the docker command uses the daemon at %s (DOCKER_HOST or a context), whose volumes are not on this host", endpoint)
	}

	v, err := r.FindVolume(ctx, name)
	if errors.Is(err, container.ErrNoVolume) {
		return nil, &api.Error{Code: api.CodeNotFound, Message: "docker has no volume with this name", Hint: "docker volume ls"}
	}
	if err != nil {
		return nil, err
	}

	s := &Source{Volume: v, runtime: r}
	if err := s.checkUsers(ctx); err != nil {
		return nil, err
	}
	return s, s.checkMounted()
}

func refused(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeRefused, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// checkUsers returns an error if a container could write to the volume. It sets s.Stopped.
func (s *Source) checkUsers(ctx context.Context) error {
	users, err := s.runtime.Users(ctx, s.Volume.Name)
	if err != nil {
		return fmt.Errorf("cannot tell which containers use it: %w", err)
	}

	var using []string
	var states []string
	s.Stopped = nil
	for _, u := range users {
		switch {
		case u.Ended:
			s.Stopped = append(s.Stopped, u.Name)
		case !u.ReadOnly:
			using, states = append(using, u.Name), append(states, fmt.Sprintf("%q (%s)", u.Name, u.State))
		}
	}

	slices.Sort(s.Stopped)
	if len(using) == 0 {
		return nil
	}
	return refused(suggest.Command("docker stop %s", using), "containers use it, and could change it during the copy: %s", strings.Join(states, ", "))
}

// checkMounted returns an error if the data of the volume is not at its path. Docker mounts volumes of
// plugins, and local volumes with a device, only while a container uses them. The path is an empty
// directory, or missing, at other times, and its copy would be empty.
func (s *Source) checkMounted() error {
	v := s.Volume
	hold := suggest.Command("docker run -d --rm --name %s -v %s IMAGE sleep 1d", "hold-"+v.Name, v.Name+":/data:ro")
	notMounted := refused("start a container that only reads it, and repeat the import: "+hold,
		"its data is not mounted on this host: docker mounts a volume of driver %q only while a container uses it", v.Driver)
	if v.Path == "" {
		return notMounted
	}

	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, v.Path, 0, unix.STATX_BASIC_STATS, &st)
	mounts := v.Driver != "local" || v.Options["device"] != "" || v.Options["type"] != ""
	switch {
	case errors.Is(err, unix.ENOENT) && mounts:
		return notMounted
	case err != nil:
		return fmt.Errorf("cannot read its directory %s: %w", v.Path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", v.Path)
	case mounts && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return notMounted
	}

	return nil
}

// Measure returns the size of the volume's data.
func (s *Source) Measure(ctx context.Context) (treecopy.Size, error) {
	dir, err := os.Open(s.Volume.Path)
	if err != nil {
		return treecopy.Size{}, err
	}
	size, err := treecopy.Measure(ctx, dir, skipped)
	return size, errors.Join(err, dir.Close())
}

// ComposeName returns the name of the volume in its compose file. A volume that compose did not create
// has the same name there.
func (s *Source) ComposeName() string {
	if name := s.Volume.Labels["com.docker.compose.volume"]; name != "" {
		return name
	}
	return s.Volume.Name
}

// skipped reports whether an entry directly in a volume is no data of its user. Such entries are the
// marker of an import, and the directory in which a file system check puts files without a name.
func skipped(name string) bool { return name == "lost+found" || name == Marker }

// entries returns the names in the root of a volume that are data of its user.
func entries(root *os.Root) (names []string, err error) {
	list, err := fs.ReadDir(root.FS(), ".")
	for _, e := range list {
		if !skipped(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}
