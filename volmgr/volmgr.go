// Package volmgr performs the single steps of a volume's life on this host. It stages, publishes,
// unpublishes and unstages volumes through a plugin, and it observes the mounts. After each call,
// it checks that the host shows the effect that the plugin reported. The package manages all paths
// below the folder csi of the data dir:
//
//	<data-dir>/csi/<plugin>/staging/<volume>               below 0700
//	<data-dir>/csi/<plugin>/per-alloc/<alloc>/<volume>     a public target; below 0711
//	<data-dir>/csi/<plugin>/per-alloc/<alloc>/.p/<volume>  a private target; below 0700
//	<data-dir>/csi/<plugin>/meta/<volume>@<alloc>.json     a volume.Note; 0600 in 0700
//
// The package never removes anything recursively. After a volume is unmounted, it removes the
// remaining files and directories with unlink and rmdir, one at a time.
package volmgr

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Options holds the dependencies of a Manager.
type Options struct {
	// Root is the directory <data-dir>/csi.
	Root string
	Host *mount.Host
	// Plugin returns the part of the plugin that answers the given call for a volume. It returns an
	// error if this part is not ready.
	Plugin func(v volume.Volume, k call.Method) (call.Caller, error)
	// Secrets reads all secrets of a volume. The Manager calls it for each CSI call that needs
	// secrets.
	Secrets func(volume.Volume) (call.Secrets, error)
}

// Manager performs the steps that the domain chooses. It stores state only about steps in progress.
type Manager struct {
	o     Options
	dirs  allocDirs
	loans loans
}

// New returns a Manager. It does not access the host.
func New(o Options) *Manager { return &Manager{o: o} }

// MaxPluginPath is the length of a path, in bytes, that every CSI plugin must accept (CSI spec,
// Size Limits). Most plugins accept longer paths, because Kubernetes uses longer paths.
const MaxPluginPath = 128

// LongestPath returns the length, in bytes, of the longest possible mount path below a root.
func LongestPath(root string) int {
	return len(filepath.Join(root, pad(24), targetsDir, pad(36), pad(34)))
}

// CheckRoot returns an error if the kernel could refuse a path below the root. A path must be
// shorter than PATH_MAX bytes, and a name must not be longer than NAME_MAX.
func CheckRoot(root string) error {
	if longest := LongestPath(root); longest >= unix.PathMax {
		return volume.Errorf(volume.ErrInvalid, "%s is too long: paths below it could have %d bytes, and Linux accepts %d", root, longest, unix.PathMax-1).
			WithHint("the data dir may have at most %d bytes", len(filepath.Dir(root))-(longest-unix.PathMax+1))
	}
	for name := range strings.SplitSeq(root, "/") {
		if len(name) > unix.NAME_MAX {
			return volume.Errorf(volume.ErrInvalid, "a name in %s has %d bytes, and Linux accepts %d", root, len(name), unix.NAME_MAX)
		}
	}

	return nil
}

func pad(n int) string { return string(make([]byte, n)) }

// These constants name the directories for a plugin's mounts, and the directory for its notes.
const (
	stagingDir = "staging"
	targetsDir = "per-alloc"
	notesDir   = "meta"
)

// StagingPath returns the path at which the plugin stages a volume.
func (m *Manager) StagingPath(pluginID, id string) string {
	return filepath.Join(m.o.Root, volume.PluginComponent(pluginID), stagingDir, volume.VolumeComponent(id))
}

// TargetPath returns the path at which the plugin publishes a volume for an alloc. A private target
// is below a directory that only root can enter.
func (m *Manager) TargetPath(pluginID, alloc, id string, private bool) string {
	dir := filepath.Join(m.o.Root, volume.PluginComponent(pluginID), targetsDir, volume.AllocComponent(alloc))
	if private {
		return filepath.Join(dir, volume.PrivateDir, volume.PrivateComponent(id))
	}
	return filepath.Join(dir, volume.VolumeComponent(id))
}

// step holds the data of one step in progress.
type step struct {
	m    *Manager
	ctx  context.Context
	r    volume.Record
	a    volume.Action
	view plugin.View
}

// outcome returns the outcome of a call to the plugin, or of a step that the agent does itself.
func (s step) outcome(err error) volume.Outcome {
	if err == nil {
		return volume.Outcome{}
	}

	var ce *volume.CallError
	if errors.As(err, &ce) {
		return volume.Outcome{Err: ce}
	}
	return volume.Outcome{Err: volume.HostError(string(s.a.Kind), err)}
}

// unsent returns the outcome of a step that failed before it sent its call.
func (s step) unsent(err error) volume.Outcome {
	out := s.outcome(err)
	out.Unsent = true
	return out
}

// unverified returns the outcome of a call that the plugin answered with OK, but whose effect the
// host does not show.
func (s step) unverified(format string, args ...any) volume.Outcome {
	return volume.Outcome{Err: &volume.CallError{
		Step: string(s.a.Kind), Code: volume.CodeUnverified, Message: fmt.Sprintf(format, args...),
		Retry: volume.RetryBackoff, Answered: true,
	}}
}

// plugin returns the part of the plugin that answers the step's call.
func (s step) plugin() (call.Caller, error) {
	p, err := s.m.o.Plugin(s.r.Volume, s.a.Kind)
	if err != nil {
		return nil, &volume.CallError{
			Step: string(s.a.Kind), Code: volume.CodeUnavailable, Message: err.Error(), Retry: volume.RetryBackoff,
		}
	}

	return p, nil
}

// pluginWithSecrets returns the part of the plugin that answers the step's call, and the secrets
// for the call. A part on another host resolves the secrets itself. If a secret cannot be read, the
// agent retries only a step that undoes something. Other steps fail without a retry, because a caller
// waits for them.
func (s step) pluginWithSecrets() (call.Caller, call.Secrets, error) {
	p, failed := s.plugin() // once, because the instances of a controller take turns
	if remote, ok := p.(interface{ ResolvesSecrets() bool }); ok && remote.ResolvesSecrets() {
		return p, nil, failed
	}

	secrets, err := s.m.o.Secrets(s.r.Volume)
	if err != nil {
		ce := volume.HostError(string(s.a.Kind), err)
		if s.a.Forward() || s.a.Kind == call.ControllerExpand {
			ce.Retry = volume.RetryChange
		}
		return nil, nil, ce
	}

	return p, secrets, failed
}

// capability returns the volume capability and the mount options of the current claims.
func (s step) capability() (call.Capability, call.MountOptions) {
	if m := s.r.Node.Mode; m != nil {
		return m.Capability, call.MountOptions{FSType: m.FSType, MountFlags: m.MountFlags}
	}
	return s.r.Volume.Capabilities[0], s.r.Volume.MountOptions
}

// group returns the mount group of the current claims.
func (s step) group() string {
	if m := s.r.Node.Mode; m != nil {
		return m.Group
	}
	return ""
}

// claim returns the claim that the step concerns.
func (s step) claim() volume.Claim { return s.r.Claims[s.a.Alloc] }
