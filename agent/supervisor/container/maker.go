package container

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
)

// These are the labels of a plugin's container. If a container has the right name but lacks these
// labels, the agent did not make it for this plugin.
const (
	labelPlugin      = "volagent.plugin"
	labelPlace       = "volagent.dir" // the plugin's directory, which differs between agents
	labelIncarnation = "volagent.incarnation"
	// a hash of the settings with which the container was made
	labelDefinition = "volagent.definition"
)

// proxies lists the variables that a container gets from the agent's environment. They are a subset
// of the variables that a command gets: those whose values are valid in another file system, too.
var proxies = []string{"TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}

// Options configures a Runner.
type Options struct {
	Via    container.Via   // runs the commands of the container runtime
	Output *pluginlog.Copy // the log of the part
	// tests whether mounts are shared; if nil, the agent does not test this
	Host      *mount.Host
	StopGrace time.Duration // the time between SIGTERM and SIGKILL
}

// maker makes the containers for one definition of a part.
type maker struct {
	runner.Part

	opts  Options
	rt    container.Runtime
	swept atomic.Bool // the container was just removed, so no container exists
}

// name returns the container's name. All characters of a plugin id are allowed in it. The hash in
// the name distinguishes agents with different directories. Because the runtime allows each name
// only once, two agents can never make two containers for the same plugin, even if an agent dies
// while it makes a container.
func (m *maker) name() string {
	sum := sha256.Sum256([]byte(m.Paths.Dir))
	return "volagent-" + m.ID + "-" + hex.EncodeToString(sum[:4])
}

// made returns a hash of the settings with which a container is made.
func (m *maker) made() string {
	text, err := json.Marshal(m.Definition.Container)
	if err != nil {
		return "" // this matches no label, so the agent makes the container again
	}

	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ours reports whether this agent made a container for this plugin.
func (m *maker) ours(c container.Container) bool {
	return c.Labels[labelIncarnation] != "" && c.Labels[labelPlugin] == m.ID && c.Labels[labelPlace] == m.Paths.Dir
}

// said returns an error message of the runtime without secrets.
func (m *maker) said(err error) error {
	if clean := m.Mask.Scrub(err.Error()); clean != err.Error() {
		return errors.New(clean)
	}
	return err
}

// spec returns the specification of the container. It expands the variables in the plugin's file
// and reads the secrets.
func (m *maker) spec(ctx context.Context) (container.Spec, error) {
	c, value := m.Definition.Container, m.Values
	s := container.Spec{
		Name: m.name(), Image: c.Image, Entrypoint: c.Entrypoint,
		Labels: map[string]string{
			labelPlugin: m.ID, labelPlace: m.Paths.Dir, labelIncarnation: rand.Text(), labelDefinition: m.made(),
		},
		// The container gets the host's own /dev, so that it sees disks that are added later.
		Binds: []container.Bind{{Path: "/dev"}, {Path: m.Paths.MountRoot, Shared: true}, {Path: m.Paths.SocketDir}, {Path: m.Paths.State}},
	}

	for _, arg := range c.Args {
		arg, err := pluginfile.Expand(arg, value)
		if err != nil {
			return s, fmt.Errorf("cannot expand the arguments: %w", err)
		}

		s.Args = append(s.Args, arg)
	}

	for _, mount := range c.Mounts {
		mount, err := pluginfile.Expand(mount, value)
		if err != nil {
			return s, fmt.Errorf("cannot expand the mounts: %w", err)
		}

		// If the source path does not exist, docker would silently create a directory there. So
		// check the path.
		source, _, _ := strings.Cut(mount, ":")
		if _, err := os.Stat(source); err != nil {
			return s, fmt.Errorf("cannot mount %q: %w", mount, err)
		}

		s.Volumes = append(s.Volumes, mount)
	}

	for _, name := range proxies {
		if v, ok := os.LookupEnv(name); ok {
			s.Env = append(s.Env, container.Var{Name: name, Value: v})
		}
	}

	s.Env = append(s.Env, container.Var{Name: pluginfile.VarEndpoint, Value: value(pluginfile.VarEndpoint)},
		container.Var{Name: pluginfile.EnvIncarnation, Value: s.Labels[labelIncarnation]})
	own, err := m.Env(ctx)
	for _, entry := range own {
		name, v, _ := strings.Cut(entry, "=")
		s.Env = append(s.Env, container.Var{Name: name, Value: v, Secret: c.Env[name].Secret != nil})
	}

	return s, err
}

// launch starts the container. If the image is missing, launch does not return a permanent failure,
// because an operator may still pull the image.
func (m *maker) launch(ctx context.Context, spec container.Spec) (id string, err error) {
	id, err = m.rt.Run(ctx, spec)
	if !errors.Is(err, container.ErrNoImage) {
		return id, err
	}
	if m.Definition.Container.Pull != plugin.PullMissing {
		return "", fmt.Errorf("image %q is not on this host, and its plugin file says \"pull: never\"; to get it: %s", spec.Image, m.rt.PullCommand(spec.Image))
	}
	if err := m.pull(ctx, spec.Image); err != nil {
		return "", err
	}

	m.Progress.Note("starting")
	return m.rt.Run(ctx, spec)
}

// pull pulls the image, which may take minutes. It returns early if the start of the plugin is
// interrupted.
func (m *maker) pull(ctx context.Context, image string) error {
	m.Progress.Note("pulling image " + image)
	pulling, cancel := context.WithCancel(ctx)
	defer cancel()

	pulled := make(chan struct{})
	var err error
	go func() {
		defer close(pulled)
		err = m.rt.Pull(pulling, image)
	}()

	if due := runner.Wait(context.WithoutCancel(ctx), m.Progress, 0, pulled, nil); due != nil {
		cancel()
		<-pulled
		if err != nil {
			m.Logger.Debug("gave up pulling an image", "image", image, "error", err)
		}

		return due
	}

	return err
}
