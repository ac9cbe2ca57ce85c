// Package plugintest checks whether a CSI plugin behaves as the agent needs. It creates a scratch
// volume, or uses one that the user names. It makes the same calls as the agent, including calls
// that fail or are interrupted. After each call, it checks the mounts on the host.
//
//	checks.go         the list: the name, the needs and the function of each check
//	check_*.go        the checks
//	life.go           stages, publishes and unmounts the volume, as a check needs it
//	undo.go           undoes a test at its end, and an interrupted test before the next one
//
// A check changes only the scratch volume. Before the test makes something that could remain, it
// records it in volume.Scratch.
package plugintest

import (
	"context"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Identity is a plugin's identity service.
type Identity interface {
	Probe(context.Context) (ready bool, err error)
	Info(context.Context) (plugin.Info, error)
}

// Plugin makes the CSI calls of the checks. Its errors are *volume.CallError.
type Plugin interface {
	Identity
	call.Caller
}

// Plugins gives access to the plugins, their processes and their state.
type Plugins interface {
	View(id string) plugin.View
	// Await waits until the plugin is ready, or returns an ErrPluginUnavailable.
	Await(ctx context.Context, id string) error
	// Tested returns a client of the plugin's current process. The caller must call it again before
	// each CSI call, because the process may have changed.
	Tested(id string) (Plugin, error)
	// MayKill returns an error if this agent is not allowed to kill the plugin's process.
	MayKill(id string) error
	// Kill kills the plugin's process, as a crash would end it. It refuses if the plugin serves any
	// volume other than own.
	Kill(id, own string) error
}

// Records stores the possible leftovers of a test.
type Records interface {
	Scratch(pluginID string) *plugin.Scratch
	// SaveScratch stores s durably. If s is nil, the plugin has no test and no leftovers.
	SaveScratch(ctx context.Context, pluginID string, s *plugin.Scratch) error
	// Registered returns the id of the registered volume with the given external id, if such a
	// volume exists.
	Registered(driver, external string) (id string, ok bool)
	// InUse returns the volumes that a plugin serves on this host.
	InUse(pluginID string) []string
}

// Host reads and changes mounts on this host.
type Host interface {
	Look(ctx context.Context, path string) volume.Sight
	// Count returns the number of mounts that are stacked on a path.
	Count(path string) (int, error)
	// Own reports whether a mount shows one of the agent's own directories.
	Own(id volume.MountIdentity) (bool, error)
	MakeReadOnly(ctx context.Context, path string) error
	// Unmount removes the mount at path. It unmounts lazily if a normal unmount fails.
	Unmount(ctx context.Context, path string) error
	// Remove removes the empty directory or file that remains at path after an unmount.
	Remove(path string) error
}

// Paths chooses the paths at which a volume is staged and published.
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
	// The Service calls Ended when a test has ended and has no leftovers on the host.
	Ended func(pluginID string)
	// Halt is the reason why the agent sends no calls to plugins; empty if it sends calls.
	Halt string
	// Grace is the time to wait for a mount that may appear late. 0 means 2 s.
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

// enter reports whether a test of the plugin may start. Only one test of a plugin runs at a time.
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

// Testing reports whether a test of the plugin is running.
func (s *Service) Testing(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy[id]
}

// Recover waits until the plugin is ready, and then undoes the leftovers of a test that an earlier
// agent began. It returns early if ctx ends.
func (s *Service) Recover(ctx context.Context, id string) error {
	if s.Records.Scratch(id) == nil {
		return nil
	}
	if err := s.Plugins.Await(ctx, id); err != nil {
		return err
	}
	if !s.enter(id) {
		return nil // a new test has started, and undoes the leftovers itself
	}
	defer s.leave(id)
	return s.clean(ctx, id, false)
}
