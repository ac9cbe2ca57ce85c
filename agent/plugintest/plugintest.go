// Package plugintest checks a CSI plugin against what the agent needs of one. It
// makes a scratch volume, or takes one that the user names, and puts it through
// the calls that the agent makes, the right ones and those that go wrong, and
// looks after each at what the host shows.
//
//	checks.go         the list: what each check is called, needs and does
//	check_*.go        the checks
//	life.go           the volume's way up and down, for checks that need it somewhere
//	undo.go           takes everything back, at the end and after a test that was cut short
//
// A check changes nothing but the scratch volume, and what may be left of that is
// on record (volume.Scratch) before it is made.
package plugintest

import (
	"context"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Identity is what a plugin says of itself.
type Identity interface {
	Probe(context.Context) (ready bool, err error)
	Info(context.Context) (volume.PluginInfo, error)
}

// Controller is a plugin's part for the storage.
type Controller interface {
	CreateVolume(context.Context, volume.CreateVolumeRequest) (volume.CreateVolumeResult, error)
	DeleteVolume(context.Context, volume.DeleteVolumeRequest) error
	ControllerPublish(context.Context, volume.ControllerPublishRequest) (map[string]string, error)
	ControllerUnpublish(context.Context, volume.ControllerUnpublishRequest) error
}

// Node is a plugin's part for this host.
type Node interface {
	NodeStage(context.Context, volume.NodeStageRequest) error
	NodeUnstage(context.Context, volume.NodeUnstageRequest) error
	NodePublish(context.Context, volume.NodePublishRequest) error
	NodeUnpublish(context.Context, volume.NodeUnpublishRequest) error
	NodeStats(context.Context, volume.StatsRequest) (volume.Stats, error)
}

// Plugin is what is called of a CSI plugin. Errors are *volume.CallError.
type Plugin interface {
	Identity
	Controller
	Node
}

// Plugins gives plugins, and tells how they are.
type Plugins interface {
	View(id string) volume.PluginView
	// Await returns when the plugin is ready, or an ErrPluginUnavailable.
	Await(ctx context.Context, id string) error
	// Tested is the plugin as it runs now; ask again for each call.
	Tested(id string) (Plugin, error)
	// MayKill refuses where the plugin's process is not this agent's to end.
	MayKill(id string) error
	// Kill ends the plugin's process as a crash would. It is refused if anything
	// but own is in use through it.
	Kill(id, own string) error
}

// Records keeps what a test may have left.
type Records interface {
	Scratch(pluginID string) *volume.Scratch
	// SaveScratch stores it durably; nil is nothing left.
	SaveScratch(ctx context.Context, pluginID string, s *volume.Scratch) error
	// Registered is the volume that is registered for an external id, if one is.
	Registered(driver, external string) (id string, ok bool)
	// InUse names the volumes that are on this host through a plugin.
	InUse(pluginID string) []string
}

// Host is what the mount table shows, and what is asked of it.
type Host interface {
	Look(ctx context.Context, path string) volume.Sight
	// Count is how many mounts lie on a path, one over the other.
	Count(path string) (int, error)
	// Own reports whether a mount shows a directory of the agent's own.
	Own(id volume.MountIdentity) (bool, error)
	MakeReadOnly(ctx context.Context, path string) error
	// Unmount takes off what is at path, lazily if nothing else helps.
	Unmount(ctx context.Context, path string) error
	// Remove removes what an unmount left at path, if it is empty.
	Remove(path string) error
}

// Paths says where a volume is staged and published.
type Paths interface {
	StagingPath(pluginID, id string) string
	TargetPath(pluginID, alloc, id string, private bool) string
	// MakeDir makes a directory for mounts, and its parents.
	MakeDir(dir string) error
}

// Service tests plugins.
type Service struct {
	Plugins Plugins
	Records Records
	Host    Host
	Paths   Paths
	Secrets func(volume.Volume) (volume.Secrets, error)
	Events  func(...volume.Event)
	// Ended is called when nothing of a test is left on the host any more.
	Ended func(pluginID string)
	// Halt says why no call is sent at all; empty when they are.
	Halt string
	// Grace is how long a mount is waited for that may come late; 0 is 2 s.
	Grace time.Duration

	mu   sync.Mutex
	busy map[string]bool
}

// DefaultTimeout bounds a test.
const DefaultTimeout = 10 * time.Minute

const defaultGrace = 2 * time.Second

func (s *Service) grace() time.Duration {
	if s.Grace > 0 {
		return s.Grace
	}
	return defaultGrace
}

// enter admits one test at a time for each plugin.
func (s *Service) enter(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil {
		s.busy = map[string]bool{}
	}
	was := s.busy[id]
	s.busy[id] = true
	return !was
}

func (s *Service) leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, id)
}

// Name is the scratch volume's name, for people and for the storage.
func Name(s *volume.Scratch) string { return "volagent-test-" + s.ID }

// Testing reports whether a test of a plugin is in hand.
func (s *Service) Testing(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy[id]
}

// Recover undoes what the tests of an earlier agent left of one plugin, when that
// is ready. It returns when it is done, or ctx ends.
func (s *Service) Recover(ctx context.Context, id string) error {
	if s.Records.Scratch(id) == nil {
		return nil
	}
	if err := s.Plugins.Await(ctx, id); err != nil {
		return err
	}
	if !s.enter(id) {
		return nil // a test of it has begun, and does that first
	}
	defer s.leave(id)
	return s.clean(ctx, id, false)
}
