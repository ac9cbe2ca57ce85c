package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// apartLook is the pause between two checks whether an instance that does not share mounts was
// replaced.
const apartLook = time.Second

// errApart is the reason not to use a plugin that does not share mounts with this host.
var errApart = errors.New("mounts are not shared")

// errBarred is the reason not to use a plugin whose user cannot enter the staging directory.
var errBarred = errors.New("the plugin must run as root")

// unusable reports whether an error says that a plugin could not mount volumes where it runs.
func unusable(err error) bool { return errors.Is(err, errApart) || errors.Is(err, errBarred) }

// share checks that a plugin with a node service and this host see each other's mounts. It also
// records warnings about the plugin's network namespace. If the check has no result, the plugin is
// accepted: each claim is checked again when it is mounted.
func (w *worker) share(ctx context.Context, run runner.Runner) error {
	host := w.s.opts.Host
	if host == nil || !w.record().Info.HasNode {
		w.warn(nil)
		return nil
	}

	pid := w.server(ctx, run)
	if pid == 0 {
		w.warn(nil)
		return nil
	}

	root, staging := w.paths.MountRoot, w.paths.Staging
	apart, err := host.Sharing(ctx, pid, staging)
	if err != nil {
		w.cannotTell(err)
	}

	if apart.Barred {
		return fmt.Errorf("%w: it runs as user %d, which may not enter %s; %s; then: %s", errBarred, apart.User, staging, run.Traits().Fix.Root, w.again(run))
	}
	if apart != (mount.Apart{}) {
		shared, err := host.Shared(root)
		why := describeApart(apart, root, run.Traits().Fix, err != nil || shared)
		return fmt.Errorf("%w: %s; then: %s", errApart, why, w.again(run))
	}

	same, err := host.SameNetwork(pid)
	switch {
	case err != nil:
		w.cannotTell(err)
		w.warn(nil)
	case same:
		w.warn(nil)
	default:
		w.warn([]string{networkWarning(run.Traits().Fix)})
	}

	return nil
}

// server returns the process that serves the plugin, 0 if it is unknown. The process that listens
// on the socket takes precedence over the process that was started. The latter may be a shell, or a
// client of a container runtime.
func (w *worker) server(ctx context.Context, run runner.Runner) int {
	if !run.Traits().Owned {
		return w.inst.PID()
	}
	if who, err := runner.Connect(ctx, run.Traits().Socket); err == nil && who.Start != 0 {
		return who.PID
	}
	return w.inst.PID()
}

// cannotTell logs why the plugin's namespaces are unknown. It is not a fault if the plugin is gone,
// or if the agent may not inspect it.
func (w *worker) cannotTell(err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ESRCH) || errors.Is(err, context.Canceled) {
		w.logger.Debug("cannot tell whether the plugin shares the host's namespaces", "error", err)
	} else {
		w.logger.Warn("cannot tell whether the plugin shares the host's namespaces", "error", err)
	}
}

// again says how to start the plugin again, so that it gets into other namespaces.
func (w *worker) again(run runner.Runner) string {
	if run.Traits().Owned {
		var part Only
		if len(w.s.parts(w.id)) > 1 {
			part.Type, part.Instance = w.which()
		}

		command, args := part.narrow("volctl plugin restart %s", []any{w.id})
		return volume.Command(command, args...)
	}

	return "start the plugin again"
}

// describeApart describes the problem, its consequence and its fix. shared says whether this host's
// mount propagates anything at all.
func describeApart(a mount.Apart, root string, fix runner.Fix, shared bool) string {
	var what string
	switch {
	case a.NoPath:
		what = fmt.Sprintf("the plugin has no directory %s, where its volumes are staged", filepath.Join(root, part.StagingDir))
	case a.OtherPath:
		what = fmt.Sprintf("at %s the plugin has another directory than this host: its volumes would be mounted where this host does not see them", filepath.Join(root, part.StagingDir))
	case a.NotIn && a.NotOut:
		what = fmt.Sprintf("below %s the plugin and this host do not see each other's mounts: services would write to the host's disk instead of the volume", root)
	case a.NotOut:
		what = fmt.Sprintf("what the plugin mounts below %s is not seen on this host: services would write to the host's disk instead of the volume", root)
	default:
		what = fmt.Sprintf("what this host mounts below %s is not seen by the plugin: it would write to the host's disk instead of the volume", root)
	}

	return what + "; " + mend(root, fix, shared || a.NoPath || a.OtherPath)
}

// mend says how to make a plugin share the host's mounts.
func mend(root string, fix runner.Fix, shared bool) string {
	var ways []string
	if !shared {
		top := filepath.Dir(root) // the parent of all plugins' mount roots
		ways = append(ways, fmt.Sprintf("the host's own mount there is not shared: with nothing mounted in it, mount --bind %[1]s %[1]s && mount --make-rshared %[1]s", top))
	}

	if way := fix.Mounts(root, shared); way != "" {
		ways = append(ways, way)
	}

	return strings.Join(ways, "; ")
}

// networkWarning returns the warning about a plugin in its own network namespace.
func networkWarning(fix runner.Fix) string {
	return "the plugin is in a network namespace of its own: mounts that the kernel makes over the network from there, as of NFS, hang when the plugin is restarted; " + fix.Network
}

// warn stores the warnings about this instance, and passes each on once.
func (w *worker) warn(warnings []string) {
	if w.misnamed != "" {
		warnings = append([]string{w.misnamed}, warnings...)
	}

	w.mu.Lock()
	var fresh []string
	for _, s := range warnings {
		if !slices.Contains(w.warned, s) {
			fresh = append(fresh, s)
		}
	}

	w.warnings, w.warned = warnings, append(w.warned, fresh...)
	w.mu.Unlock()
	if len(fresh) == 0 || w.s.opts.OnWarning == nil {
		return
	}

	part := ""
	if len(w.s.parts(w.id)) > 1 {
		part = w.name()
	}

	for _, s := range fresh {
		w.s.opts.OnWarning(w.id, part, s)
	}
}

// apart handles an instance that this agent does not run and that does not share mounts. It is
// checked again when its socket is replaced, and periodically.
func (w *worker) apart(ctx context.Context, def *volume.PluginDefinition, why error) {
	w.must(w.m.unhealthy(why.Error()))
	w.drop()
	inst, again := w.inst, time.Now().Add(def.ProbeInterval)
	for {
		before := time.Now()
		if !w.rest(ctx, min(apartLook, def.ProbeInterval), true) || inst.Stale() || time.Now().After(again) || time.Since(before) < apartLook {
			break
		}
	}

	w.inst = nil
	w.runs(nil)
}

// clearCanaries removes the test mounts that remain if an agent was killed while it tested whether
// mounts are shared.
func (s *Supervisor) clearCanaries(ctx context.Context) {
	top := s.opts.dirs().MountRoots()
	plugins, err := os.ReadDir(top)
	if err != nil || s.opts.Host == nil {
		return // there are no test mounts
	}

	for _, p := range plugins {
		staging := filepath.Join(top, p.Name(), part.StagingDir)
		if info, err := os.Lstat(filepath.Join(staging, mount.CanaryName)); err != nil || !info.IsDir() {
			continue
		}
		if err := s.opts.Host.ClearCanary(ctx, staging); err != nil {
			s.log.Warn("something was left where it was tried whether a plugin shares mounts", "error", err)
		}
	}
}
