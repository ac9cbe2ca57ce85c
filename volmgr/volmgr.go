// Package volmgr does the single steps of a volume's life on this host: it
// stages, publishes, unpublishes and unstages through a plugin, observes what
// is mounted, and checks after each call that the host shows what the plugin
// said. It owns every host path below the data directory's csi folder:
//
//	<data-dir>/csi/<plugin>/staging/<volume>               below 0700
//	<data-dir>/csi/<plugin>/per-alloc/<alloc>/<volume>     a public target; below 0711
//	<data-dir>/csi/<plugin>/per-alloc/<alloc>/.p/<volume>  a private target; below 0700
//	<data-dir>/csi/<plugin>/meta/<volume>@<alloc>.json     a volume.Note; 0600 in 0700
//
// Nothing is ever removed recursively here: what is left after a volume is
// taken down goes by rmdir and unlink, one name at a time.
package volmgr

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Plugin is what is called of a CSI plugin. Errors are *volume.CallError.
type Plugin interface {
	ControllerPublish(context.Context, volume.ControllerPublishRequest) (map[string]string, error)
	ControllerUnpublish(context.Context, volume.ControllerUnpublishRequest) error
	NodeStage(context.Context, volume.NodeStageRequest) error
	NodeUnstage(context.Context, volume.NodeUnstageRequest) error
	NodePublish(context.Context, volume.NodePublishRequest) error
	NodeUnpublish(context.Context, volume.NodeUnpublishRequest) error
	ControllerExpand(context.Context, volume.ExpandRequest) (volume.ExpandResult, error)
	NodeExpand(context.Context, volume.NodeExpandRequest) (int64, error)
	ControllerGetVolume(ctx context.Context, externalID string) (volume.StorageVolume, error)
	ListVolumes(context.Context, volume.ListVolumesRequest) (volume.VolumePage, error)
}

// Options are what a Manager needs.
type Options struct {
	// Root is <data-dir>/csi.
	Root string
	Host *mount.Host
	// Plugin returns what answers one step's call for a volume, or an error if
	// that is not ready.
	Plugin func(v volume.Volume, k volume.Kind) (Plugin, error)
	// Secrets reads all secrets of a volume, at the moment of a call.
	Secrets func(volume.Volume) (volume.Secrets, error)
}

// Manager does steps. It keeps no state of its own but what is in hand.
type Manager struct {
	o     Options
	dirs  allocDirs
	loans loans
}

// New returns a Manager; it touches nothing.
func New(o Options) *Manager { return &Manager{o: o} }

// MaxPluginPath is how long a path, in bytes, a CSI plugin must accept (CSI spec, Size
// Limits). Most accept longer ones: kubelet's are longer.
const MaxPluginPath = 128

// LongestPath is the length, in bytes, of the longest path of a mount below a root.
func LongestPath(root string) int {
	return len(filepath.Join(root, pad(24), targetsDir, pad(36), pad(34)))
}

// CheckRoot refuses a root below which the kernel could refuse a path: one of PATH_MAX
// bytes with its final zero, or one with a name beyond NAME_MAX.
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

// Names of the directories of a plugin's mounts, and of the notes beside them.
const (
	stagingDir = "staging"
	targetsDir = "per-alloc"
	notesDir   = "meta"
)

// StagingPath is where a volume is staged.
func (m *Manager) StagingPath(pluginID, id string) string {
	return filepath.Join(m.o.Root, volume.PluginComponent(pluginID), stagingDir, volume.VolumeComponent(id))
}

// TargetPath is where a volume is published for an alloc. A private target lies below a
// directory that only root can enter.
func (m *Manager) TargetPath(pluginID, alloc, id string, private bool) string {
	dir := filepath.Join(m.o.Root, volume.PluginComponent(pluginID), targetsDir, volume.AllocComponent(alloc))
	if private {
		return filepath.Join(dir, volume.PrivateDir, volume.PrivateComponent(id))
	}
	return filepath.Join(dir, volume.VolumeComponent(id))
}

// Observe looks at every path of a record but the one that was looked at just
// now, if any. Each look is bounded, and a path that hangs does not hold up the
// others. What nobody wants any more is looked at from outside alone, so that
// somebody's look at a volume does not keep it busy while it is unmounted.
func (m *Manager) Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed {
	o := volume.Observed{
		Boot:    m.o.Host.Boot(),
		Targets: map[string]volume.Sight{}, Binds: map[string]volume.Sight{}, Watched: map[string]volume.Sight{},
	}
	var paths []string
	var puts []func(volume.Sight)
	look := func(path string, put func(volume.Sight)) {
		switch path {
		case "":
		case now.Path:
			put(now.Sight)
		default:
			paths, puts = append(paths, path), append(puts, put)
		}
	}
	leaving, wanted := map[string]bool{}, len(r.Claims) == 0
	look(r.Node.StagingPath, func(s volume.Sight) { o.Staging = s })
	for alloc, c := range r.Claims {
		wanted = wanted || c.Wanted
		leaving[c.Target], leaving[c.At] = !c.Wanted, !c.Wanted
		look(c.Target, func(s volume.Sight) { o.Targets[alloc] = s })
		if s, lent := m.unwalked(r.Volume.ID, c); lent && c.At != "" && c.At != now.Path {
			o.Binds[alloc] = s
			continue
		}
		look(c.At, func(s volume.Sight) { o.Binds[alloc] = bindSight(s) })
	}
	for _, w := range r.Node.Watches {
		look(w.Path, func(s volume.Sight) { o.Watched[w.Path] = s })
	}
	leaving[r.Node.StagingPath] = !wanted
	for i, s := range m.o.Host.LookAll(ctx, paths, leaving) {
		puts[i](s)
	}
	return o
}

// Do does one step of a record and says how it went.
func (m *Manager) Do(ctx context.Context, r volume.Record, a volume.Action, p volume.PluginView) volume.Outcome {
	s := step{m: m, ctx: ctx, r: r, a: a, view: p}
	switch a.Kind {
	case volume.ControllerPublish:
		return s.controllerPublish()
	case volume.ControllerUnpublish:
		return s.controllerUnpublish()
	case volume.NodeStage:
		return s.stage()
	case volume.NodeUnstage:
		return s.unstage()
	case volume.NodePublish:
		return s.publish()
	case volume.NodeUnpublish:
		return s.unpublish()
	case volume.Own:
		return s.own()
	case volume.ControllerExpand:
		return s.controllerExpand()
	case volume.NodeExpand:
		return s.nodeExpand()
	case volume.Bind:
		return s.bind()
	case volume.Unbind:
		return s.unbind()
	case volume.Unmount:
		return s.withoutPlugin()
	case volume.Prove:
		return s.prove()
	default:
		return volume.Outcome{} // a step in the record alone
	}
}

// step is one step in hand.
type step struct {
	m    *Manager
	ctx  context.Context
	r    volume.Record
	a    volume.Action
	view volume.PluginView
}

// outcome is how a call, or a step of our own, went.
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

// unsent is how a step failed that did not get to its call.
func (s step) unsent(err error) volume.Outcome {
	out := s.outcome(err)
	out.Unsent = true
	return out
}

// unverified is the outcome of a call that the plugin says went well.
func (s step) unverified(format string, args ...any) volume.Outcome {
	return volume.Outcome{Err: &volume.CallError{
		Step: string(s.a.Kind), Code: volume.CodeUnverified, Message: fmt.Sprintf(format, args...),
		Retry: volume.RetryBackoff, Answered: true,
	}}
}

// plugin returns the plugin for a call.
func (s step) plugin() (Plugin, error) {
	p, err := s.m.o.Plugin(s.r.Volume, s.a.Kind)
	if err != nil {
		return nil, &volume.CallError{
			Step: string(s.a.Kind), Code: "Unavailable", Message: err.Error(), Retry: volume.RetryBackoff,
		}
	}
	return p, nil
}

// pluginWithSecrets returns the plugin and the secrets for a call that takes
// some. Whoever waits for a mount, or a size, is told at once of one that cannot be read; an
// undoing goes on when it can.
func (s step) pluginWithSecrets() (Plugin, volume.Secrets, error) {
	secrets, err := s.m.o.Secrets(s.r.Volume)
	if err != nil {
		ce := volume.HostError(string(s.a.Kind), err)
		if s.a.Forward() || s.a.Kind == volume.ControllerExpand {
			ce.Retry = volume.RetryChange
		}
		return nil, nil, ce
	}
	p, err := s.plugin()
	return p, secrets, err
}

// capability is the volume capability of the claims in force.
func (s step) capability() (volume.Capability, volume.MountOptions) {
	if m := s.r.Node.Mode; m != nil {
		return m.Capability, volume.MountOptions{FSType: m.FSType, MountFlags: m.MountFlags}
	}
	return s.r.Volume.Capabilities[0], s.r.Volume.MountOptions
}

// group is the mount group of the claims in force.
func (s step) group() string {
	if m := s.r.Node.Mode; m != nil {
		return m.Group
	}
	return ""
}
