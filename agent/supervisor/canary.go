package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/suggest"
)

// errApart means that a plugin cannot be used because it and this host do not see each other's
// mounts.
var errApart = errors.New("mounts are not shared")

// errBarred means that a plugin cannot be used because its user cannot enter the staging directory.
var errBarred = errors.New("the plugin must run as root")

// unusable reports whether err means that the plugin cannot mount volumes because of its namespaces
// or its user.
func unusable(err error) bool { return errors.Is(err, errApart) || errors.Is(err, errBarred) }

// share checks that a plugin with a node service and this host see each other's mounts. It also
// records warnings about the plugin's network namespace. If the check gives no result, share
// accepts the plugin: the agent checks each mount anyway when it mounts a claim.
func (c *checker) share(ctx context.Context, inst runner.Instance, run runner.Traits) error {
	host := c.opts.Host
	if host == nil || !c.record.get().Info.HasNode {
		c.warn(nil)
		return nil
	}

	pid := server(ctx, inst, run)
	if pid == 0 {
		c.warn(nil)
		return nil
	}

	root, staging := c.paths.MountRoot, c.paths.Staging
	apart, err := host.Sharing(ctx, pid, staging)
	if err != nil {
		c.cannotTell(err)
	}

	if apart.Barred {
		return fmt.Errorf("%w: it runs as user %d, which may not enter %s; %s, then: %s", errBarred, apart.User, staging, run.Fix.Root, c.again(run))
	}
	if apart != (mount.Apart{}) {
		shared, err := host.Shared(root)
		why := describeApart(apart, root, run.Fix, err != nil || shared)
		return fmt.Errorf("%w: %s; then: %s", errApart, why, c.again(run))
	}

	same, err := host.SameNetwork(pid)
	switch {
	case err != nil:
		c.cannotTell(err)
		c.warn(nil)
	case same:
		c.warn(nil)
	default:
		c.warn([]string{networkWarning(run.Fix)})
	}

	return nil
}

// server returns the pid of the process that serves the plugin, or 0 if the pid is unknown. If
// possible, it returns the process that listens on the socket. The process that the agent started
// may be only a shell or the client of a container runtime.
func server(ctx context.Context, inst runner.Instance, run runner.Traits) int {
	if !run.Owned {
		return inst.PID()
	}
	if who, err := runner.Connect(ctx, run.Socket); err == nil && who.Start != 0 {
		return who.PID
	}
	return inst.PID()
}

// cannotTell logs why the agent cannot inspect the plugin's namespaces. It logs no warning if the
// plugin has ended or if the agent lacks the permission.
func (c *checker) cannotTell(err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ESRCH) || errors.Is(err, context.Canceled) {
		c.logger.Debug("cannot tell whether the plugin shares the host's namespaces", "error", err)
	} else {
		c.logger.Warn("cannot tell whether the plugin shares the host's namespaces", "error", err)
	}
}

// again returns the instruction that tells the operator how to restart the plugin, because only a
// restarted plugin gets other namespaces.
func (c *checker) again(run runner.Traits) string {
	if run.Owned {
		var only part.Only
		if len(c.siblings.of(c.id)) > 1 {
			g := c.look()
			only.Type, only.Instance = g.Kind, g.Instance()
		}

		command, args := only.Narrow("volctl plugin restart %s", []any{c.id})
		return suggest.Command(command, args...)
	}

	return "start the plugin again"
}

// describeApart describes why the plugin and the host do not share mounts, the consequence, and the
// fix. The argument shared reports whether the host shares its own mount with any other namespace.
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
		what = fmt.Sprintf("this host does not see the mounts that the plugin makes below %s: services would write to the host's disk instead of the volume", root)
	default:
		what = fmt.Sprintf("the plugin does not see the mounts that this host makes below %s: it would write to the host's disk instead of the volume", root)
	}

	return what + "; " + fixMounts(root, fix, shared || a.NoPath || a.OtherPath)
}

// fixMounts returns instructions for the operator that make a plugin share the host's mounts.
func fixMounts(root string, fix runner.Fix, shared bool) string {
	var ways []string
	if !shared {
		top := filepath.Dir(root) // the parent directory of the mount roots of all plugins
		ways = append(ways, fmt.Sprintf("the host's own mount there is not shared: with nothing mounted in it, mount --bind %[1]s %[1]s && mount --make-rshared %[1]s", top))
	}

	if way := fix.Mounts(root, shared); way != "" {
		ways = append(ways, way)
	}

	return strings.Join(ways, "; ")
}

// networkWarning returns the warning about a plugin that has its own network namespace.
func networkWarning(fix runner.Fix) string {
	return "the plugin is in a network namespace of its own: mounts that the kernel makes over the network from there, as of NFS, hang when the plugin is restarted; " + fix.Network
}

// clearCanaries removes test mounts that a killed agent left. The agent makes such a mount to test
// whether a plugin shares mounts.
func (e *env) clearCanaries(ctx context.Context) {
	top := e.dirs.MountRoots()
	plugins, err := os.ReadDir(top)
	if err != nil || e.opts.Host == nil {
		return // there are no leftover test mounts
	}

	for _, p := range plugins {
		staging := filepath.Join(top, p.Name(), part.StagingDir)
		if info, err := os.Lstat(filepath.Join(staging, mount.CanaryName)); err != nil || !info.IsDir() {
			continue
		}
		if err := e.opts.Host.ClearCanary(ctx, staging); err != nil {
			e.log.Warn("cannot remove all leftovers of earlier mount tests", "error", err)
		}
	}
}
