// Package plugintest checks whether a CSI plugin behaves as the agent needs. It makes a scratch
// volume, or uses one that the user names. It makes the calls that the agent makes, including calls
// that fail or are interrupted. After each call, it checks the mounts on the host.
//
//	checks.go         the list: the name, the needs and the function of each check
//	check_*.go        the checks
//	life.go           brings the volume up and down, as a check needs it
//	undo.go           undoes everything, at the end and after a test that was cut short
//
// A check changes only the scratch volume. Every possible leftover is recorded in volume.Scratch
// before the test makes it.
package plugintest

import (
	"context"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Identity is a plugin's identity service.
type Identity interface {
	Probe(context.Context) (ready bool, err error)
	Info(context.Context) (volume.PluginInfo, error)
}

// Controller is a plugin's controller service.
type Controller interface {
	CreateVolume(context.Context, call.CreateVolumeRequest) (call.CreateVolumeResult, error)
	DeleteVolume(context.Context, call.DeleteVolumeRequest) error
	ControllerPublish(context.Context, call.ControllerPublishRequest) (map[string]string, error)
	ControllerUnpublish(context.Context, call.ControllerUnpublishRequest) error
}

// Node is a plugin's node service on this host.
type Node interface {
	NodeStage(context.Context, call.NodeStageRequest) error
	NodeUnstage(context.Context, call.NodeUnstageRequest) error
	NodePublish(context.Context, call.NodePublishRequest) error
	NodeUnpublish(context.Context, call.NodeUnpublishRequest) error
	NodeStats(context.Context, call.StatsRequest) (call.Stats, error)
}

// Plugin is the part of a CSI plugin that the checks call. Its errors are *volume.CallError.
type Plugin interface {
	Identity
	Controller
	Node
}

// Plugins gives access to the plugins and their state.
type Plugins interface {
	View(id string) volume.PluginView
	// Await returns when the plugin is ready, or returns an ErrPluginUnavailable.
	Await(ctx context.Context, id string) error
	// Tested returns the plugin's present process. It must be called again for each call.
	Tested(id string) (Plugin, error)
	// MayKill returns an error if this agent must not end the plugin's process.
	MayKill(id string) error
	// Kill ends the plugin's process like a crash. It refuses if the plugin serves any volume other
	// than own.
	Kill(id, own string) error
}

// Records stores the possible leftovers of a test.
type Records interface {
	Scratch(pluginID string) *volume.Scratch
	// SaveScratch stores s durably; nil means that no leftovers exist.
	SaveScratch(ctx context.Context, pluginID string, s *volume.Scratch) error
	// Registered returns the id of the registered volume with an external id, if there is one.
	Registered(driver, external string) (id string, ok bool)
	// InUse returns the volumes that a plugin serves on this host.
	InUse(pluginID string) []string
}

// Host reads and changes mounts on this host.
type Host interface {
	Look(ctx context.Context, path string) volume.Sight
	// Count returns the number of mounts on a path, one on top of the other.
	Count(path string) (int, error)
	// Own reports whether a mount shows one of the agent's own directories.
	Own(id volume.MountIdentity) (bool, error)
	MakeReadOnly(ctx context.Context, path string) error
	// Unmount removes the mount at path, lazily if there is no other way.
	Unmount(ctx context.Context, path string) error
	// Remove removes the empty directory or file that remains at path after an unmount.
	Remove(path string) error
}

// Paths returns the paths where a volume is staged and published.
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
	Secrets func(volume.Volume) (call.Secrets, error)
	Events  func(...volume.Event)
	// Ended is called when a test has no leftovers on the host.
	Ended func(pluginID string)
	// Halt is the reason why the agent sends no calls at all; empty if it sends them.
	Halt string
	// Grace is the time to wait for a mount that may appear late; 0 means 2 s.
	Grace time.Duration

	mu   sync.Mutex
	busy map[string]bool
}

// DefaultTimeout is the default time limit of a test.
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

// Name returns the scratch volume's name, for people and for the storage.
func Name(s *volume.Scratch) string { return "volagent-test-" + s.ID }

// Testing reports whether a test of the plugin is running.
func (s *Service) Testing(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy[id]
}

// Recover undoes the leftovers of tests by an earlier agent, when the plugin is ready. It returns
// when this is done, or when ctx ends.
func (s *Service) Recover(ctx context.Context, id string) error {
	if s.Records.Scratch(id) == nil {
		return nil
	}
	if err := s.Plugins.Await(ctx, id); err != nil {
		return err
	}
	if !s.enter(id) {
		return nil // a new test has started and does that first
	}
	defer s.leave(id)
	return s.clean(ctx, id, false)
}
