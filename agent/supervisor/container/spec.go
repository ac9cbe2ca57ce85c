package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/volume"
)

// spec returns the container to make, with its variables expanded and its secrets read.
func (r *Runner) spec(ctx context.Context) (container.Spec, error) {
	c, value := r.Definition.Container, r.Values
	s := container.Spec{
		Name: r.name(), Image: c.Image,
		Labels: map[string]string{
			labelPlugin: r.ID, labelPlace: r.Paths.Dir, labelIncarnation: rand.Text(), labelDefinition: r.made(),
		},
		// The host's own /dev, so that disks that appear later are visible.
		Binds: []container.Bind{{Path: "/dev"}, {Path: r.Paths.MountRoot, Shared: true}, {Path: r.Paths.SocketDir}, {Path: r.Paths.State}},
	}

	for _, arg := range c.Args {
		arg, err := pluginfile.Expand(arg, value)
		if err != nil {
			return s, fmt.Errorf("cannot expand the arguments: %w", err)
		}

		s.Args = append(s.Args, arg)
	}

	for _, m := range c.Mounts {
		m, err := pluginfile.Expand(m, value)
		if err != nil {
			return s, fmt.Errorf("cannot expand the mounts: %w", err)
		}

		// Docker would make a directory for a mistyped path.
		source, _, _ := strings.Cut(m, ":")
		if _, err := os.Stat(source); err != nil {
			return s, fmt.Errorf("cannot mount %q: %w", m, err)
		}

		s.Volumes = append(s.Volumes, m)
	}

	for _, name := range proxies {
		if v, ok := os.LookupEnv(name); ok {
			s.Env = append(s.Env, container.Var{Name: name, Value: v})
		}
	}

	s.Env = append(s.Env, container.Var{Name: pluginfile.VarEndpoint, Value: value(pluginfile.VarEndpoint)},
		container.Var{Name: pluginfile.EnvIncarnation, Value: s.Labels[labelIncarnation]})
	own, err := r.Env(ctx)
	for _, entry := range own {
		name, v, _ := strings.Cut(entry, "=")
		s.Env = append(s.Env, container.Var{Name: name, Value: v, Secret: c.Env[name].Secret != nil})
	}

	return s, err
}

// launch runs the container, which also shows whether the image exists. A missing image is not a
// permanent failure, since an operator may pull it.
func (r *Runner) launch(ctx context.Context, spec container.Spec) (id string, err error) {
	id, err = r.rt.Run(ctx, spec)
	if !errors.Is(err, container.ErrNoImage) {
		return id, err
	}
	if r.Definition.Container.Pull != volume.PullMissing {
		return "", fmt.Errorf("image %q is not on this host, and its plugin file says \"pull: never\"; to get it: %s", spec.Image, r.rt.PullCommand(spec.Image))
	}
	if err := r.pull(ctx, spec.Image); err != nil {
		return "", err
	}

	r.Progress.Note("starting")
	return r.rt.Run(ctx, spec)
}

// pull pulls the image, which may take minutes. It ends early when the start must be given up.
func (r *Runner) pull(ctx context.Context, image string) error {
	r.Progress.Note("pulling image " + image)
	pulling, cancel := context.WithCancel(ctx)
	defer cancel()

	pulled := make(chan struct{})
	var err error
	go func() {
		defer close(pulled)
		err = r.rt.Pull(pulling, image)
	}()

	if due := runner.Wait(context.WithoutCancel(ctx), r.Progress, 0, pulled, nil); due != nil {
		cancel()
		<-pulled
		if err != nil {
			r.Logger.Debug("gave up pulling an image", "image", image, "error", err)
		}

		return due
	}

	return err
}
