package supervisor

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// The labels of a plugin's container. A container without the labels of this plugin was not made
// for it, even if it has the right name.
const (
	labelPlugin      = "volagent.plugin"
	labelPlace       = "volagent.dir" // the plugin's directory, which differs between two agents
	labelIncarnation = "volagent.incarnation"
	labelDefinition  = "volagent.definition" // hash of the settings it was made from
)

// proxies lists the variables of the agent's environment that a container gets: those of execRunner
// that have a meaning in another file system.
var proxies = []string{"TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}

// containerRunner runs the plugin with podman or docker. The container belongs to the runtime, so
// nothing ties it to the agent. The agent watches the container's main process, like that of any
// other plugin. It asks the runtime only when there is something to do, so a runtime that is down
// or hangs does not harm a running plugin.
type containerRunner struct {
	p     *plugin
	def   *volume.PluginDefinition
	paths paths
	rt    container.Runtime

	looked bool                 // the runtime was asked
	left   *container.Container // the container that has the name; nil if there is none
}

func newContainerRunner(p *plugin, def *volume.PluginDefinition) *containerRunner {
	return &containerRunner{p: p, def: def, paths: p.paths(), rt: container.New(def.Container.Runtime).With(p.s.Outside)}
}

// Owned implements runner.
func (r *containerRunner) Owned() bool { return true }

// Socket implements runner.
func (r *containerRunner) Socket() string { return r.paths.socket }

// name returns the container's name. All characters of a plugin id are allowed in it. The hash
// distinguishes agents with different directories. The runtime allows each name only once. So if an
// agent died while it was making a container, no second one can be made beside it.
func (r *containerRunner) name() string {
	sum := sha256.Sum256([]byte(r.paths.dir))
	return "volagent-" + r.p.id + "-" + hex.EncodeToString(sum[:4])
}

// made returns a hash of the settings that a container is made from.
func (r *containerRunner) made() string {
	text, err := json.Marshal(r.def.Container)
	if err != nil {
		return "" // it equals no label, so the container is made anew
	}

	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ours reports whether a container was made for this plugin.
func (r *containerRunner) ours(c container.Container) bool {
	return c.Labels[labelIncarnation] != "" && c.Labels[labelPlugin] == r.p.id && c.Labels[labelPlace] == r.paths.dir
}

// Find implements runner.
func (r *containerRunner) Find(ctx context.Context) (instance, error) {
	was := r.p.record().Process
	if was.Container != "" && was.Boot == r.p.s.boot {
		// Its process is enough, so the runtime is not asked.
		if st, err := proc.ReadStat(was.PID); err == nil && st.Began(was.StartTime) && st.Alive() {
			r.p.hideGiven(r.def, was.PID)
			return r.attach(ctx, was)
		}
	}

	if err := r.look(ctx); err != nil || r.left == nil {
		return nil, err
	}

	c, nonce := *r.left, r.left.Labels[labelIncarnation]
	if !r.ours(c) || !c.Alive || !isOf(c) || nonce != was.Nonce && c.Labels[labelDefinition] != r.made() {
		return nil, nil
	}
	if nonce != was.Nonce {
		r.p.log.Warn("found a running container that was not on record", "container", r.name())
	}

	r.p.hideGiven(r.def, c.PID)
	return r.take(ctx, c, nonce)
}

// look asks the runtime, once, for a container with this plugin's name.
func (r *containerRunner) look(ctx context.Context) error {
	if r.looked || r.p.take(&r.p.swept) {
		r.looked = true
		return nil
	}

	c, err := r.rt.Inspect(ctx, r.name())
	switch {
	case err == nil:
		r.left = &c
	case !errors.Is(err, container.ErrNotFound):
		return r.said(err)
	}

	r.looked = true
	return nil
}

// take attaches to a container that runs, or that has ended in the meantime.
func (r *containerRunner) take(ctx context.Context, c container.Container, nonce string) (instance, error) {
	it := volume.PluginProcess{Nonce: nonce, Container: c.ID, PID: c.PID, Boot: r.p.s.boot}
	st, err := proc.ReadStat(c.PID)
	if err == nil {
		it.StartTime = st.Start
	} else {
		it.PID = 0
	}

	return r.attach(ctx, it)
}

// attach watches a container that runs, and records it.
func (r *containerRunner) attach(ctx context.Context, it volume.PluginProcess) (instance, error) {
	var proc *process
	if it.PID != 0 {
		var err error
		if proc, err = openProcess(it.PID, it.StartTime, reap); err != nil {
			return nil, err
		}
	}

	if err := r.p.saveProcess(ctx, it, r.def); err != nil {
		// The nonce is stored, and that is enough to find the container again.
		r.p.log.Warn("cannot store which container serves the plugin", "container", it.Container, "error", err)
	}

	r.p.logs.from(r.rt, it.Container)
	return watchContainer(ctx, r, it, proc), nil
}

// Start implements runner. The order is the same as in execRunner: the nonce is stored before a
// container can exist, and the container's process after that. Find repairs a crash between the
// two.
func (r *containerRunner) Start(ctx context.Context) (instance, error) {
	if err := r.clear(ctx); err != nil {
		return nil, err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}

	spec, err := r.spec(ctx)
	if err != nil {
		return nil, err
	}

	it := volume.PluginProcess{Nonce: spec.Labels[labelIncarnation], Boot: r.p.s.boot}
	if err := r.p.saveProcess(ctx, it, r.def); err != nil {
		return nil, fmt.Errorf("cannot store that the plugin is being started: %w", err)
	}

	id, err := r.launch(ctx, spec)
	if err != nil {
		return nil, r.failed(ctx, err)
	}

	c, err := r.running(ctx, id)
	if err != nil {
		return nil, r.said(err)
	}

	return r.take(ctx, c, it.Nonce)
}

// failed explains why there is no container. It also removes a container whose start failed
// half-way.
func (r *containerRunner) failed(ctx context.Context, err error) error {
	r.looked, r.left = false, nil
	if errors.Is(err, errDue) || ctx.Err() != nil || r.look(ctx) != nil || r.left == nil {
		return r.said(err)
	}
	if !r.ours(*r.left) {
		return r.taken()
	}
	if !r.left.Alive {
		if err := r.rt.Remove(ctx, r.left.ID); err != nil {
			r.p.log.Debug("cannot remove a container that could not be started", "container", r.name(), "error", err)
		}
	}

	return r.said(err)
}

// taken returns the error for a container with this name that the agent did not make.
func (r *containerRunner) taken() error {
	return fmt.Errorf("cannot make container %s: there is one of that name that this agent has not made; see %[2]s inspect %[1]s, and rename or remove it", r.name(), r.rt.Name())
}

// running inspects a container that was just started, until its process is visible, or until the
// runtime also reports that it has ended.
func (r *containerRunner) running(ctx context.Context, id string) (container.Container, error) {
	limit, cancel := context.WithTimeout(ctx, exitPatience)
	defer cancel()

	again := time.NewTicker(exitLook)
	defer again.Stop()

	for {
		c, err := r.rt.Inspect(ctx, id)
		if err != nil || !c.Alive {
			return c, err
		}
		if isOf(c) {
			return c, nil
		}

		select {
		case <-again.C:
		case <-limit.Done():
			if ctx.Err() != nil {
				return c, ctx.Err()
			}

			return c, r.unseen(ctx, c)
		}
	}
}

// unseen ends a container that cannot be watched, and returns the reason.
func (r *containerRunner) unseen(ctx context.Context, c container.Container) error {
	err := r.rt.Stop(ctx, c.ID, 0)
	if err == nil {
		err = r.rt.Remove(ctx, c.ID)
	}

	if err != nil {
		r.p.log.Warn("cannot end a container of which the process is not to be seen", "container", r.name(), "error", r.said(err))
	}

	return fmt.Errorf("process %d of container %s is not to be seen: %s runs it on another host, or in another pid namespace", c.PID, r.name(), r.rt.Name())
}

// said removes secrets from the runtime's messages.
func (r *containerRunner) said(err error) error {
	if clean := r.p.scrub.Scrub(err.Error()); clean != err.Error() {
		return errors.New(clean)
	}
	return err
}

// clear removes the container of an earlier start. Either it has ended, and its log is read first,
// or Find did not accept it. Containers that the agent did not make are not touched.
func (r *containerRunner) clear(ctx context.Context) error {
	if err := r.look(ctx); err != nil {
		return err
	}

	c := r.left
	switch {
	case c == nil:
		return nil
	case !r.ours(*c):
		return r.taken()
	case c.Alive:
		r.p.log.Warn("ending a container that is not to be taken over: no record has it and it was made from another definition, or its process is not to be seen", "container", r.name())
		if err := r.rt.Stop(ctx, c.ID, r.p.s.opts.StopGrace); err != nil {
			return fmt.Errorf("cannot end the container before this one: %w", r.said(err))
		}
	}

	r.p.logs.from(r.rt, c.ID)
	if err := r.p.logs.last(ctx); err != nil {
		r.p.log.Debug("cannot read what a container wrote", "container", c.ID, "error", err)
	}

	if err := r.rt.Remove(ctx, c.ID); err != nil {
		return fmt.Errorf("cannot remove the container before this one: %w", r.said(err))
	}

	return nil
}

// prepare makes the directories and frees the socket path that the container needs on the host.
func (r *containerRunner) prepare(ctx context.Context) error {
	if err := r.paths.make(); err != nil {
		return err
	}

	root, shared := r.paths.mountRoot, true
	if host := r.p.s.opts.Host; host != nil {
		if is, err := host.Shared(root); err == nil {
			shared = is
		}
	}

	if !shared {
		return fmt.Errorf("nothing that a container mounts in %s could be seen on the host, because that is in no shared mount: "+
			"mount --make-rshared / (as systemd does), or, with nothing mounted there: mount --bind %[2]s %[2]s && mount --make-shared %[2]s", root, filepath.Dir(root))
	}

	who, taken, err := freeSocket(ctx, r.paths.socket)
	if taken {
		return takenError(who, r.paths.socket)
	}

	return err
}

// spec returns the container to make, with its variables expanded and its secrets read.
func (r *containerRunner) spec(ctx context.Context) (container.Spec, error) {
	c, value := r.def.Container, r.p.values()
	s := container.Spec{
		Name: r.name(), Image: c.Image,
		Labels: map[string]string{
			labelPlugin: r.p.id, labelPlace: r.paths.dir, labelIncarnation: rand.Text(), labelDefinition: r.made(),
		},
		// The host's own /dev, so that disks that appear later are visible.
		Binds: []container.Bind{{Path: "/dev"}, {Path: r.paths.mountRoot, Shared: true}, {Path: r.paths.socketDir}, {Path: r.paths.state}},
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
	own, err := r.p.ownEnv(ctx, r.def, value)
	for _, entry := range own {
		name, v, _ := strings.Cut(entry, "=")
		s.Env = append(s.Env, container.Var{Name: name, Value: v, Secret: c.Env[name].Secret != nil})
	}

	return s, err
}

// launch runs the container, which also shows whether the image exists. A missing image is not a
// permanent failure, since an operator may pull it.
func (r *containerRunner) launch(ctx context.Context, spec container.Spec) (id string, err error) {
	id, err = r.rt.Run(ctx, spec)
	if !errors.Is(err, container.ErrNoImage) {
		return id, err
	}
	if r.def.Container.Pull != volume.PullMissing {
		return "", fmt.Errorf("image %q is not on this host, and its plugin file says \"pull: never\"; to get it: %s", spec.Image, r.rt.PullCommand(spec.Image))
	}
	if err := r.pull(ctx, spec.Image); err != nil {
		return "", err
	}

	r.p.m.note("starting")
	return r.rt.Run(ctx, spec)
}

// pull pulls the image, which may take minutes. It ends early when due returns true.
func (r *containerRunner) pull(ctx context.Context, image string) error {
	r.p.m.note("pulling image " + image)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	pulled := make(chan error, 1)
	go func() { pulled <- r.rt.Pull(ctx, image) }()
	for {
		select {
		case err := <-pulled:
			return err
		case <-r.p.wake:
			if r.p.due() {
				cancel()
				if err := <-pulled; err != nil {
					r.p.log.Debug("gave up pulling an image", "image", image, "error", err)
				}

				return errDue
			}
		}
	}
}
