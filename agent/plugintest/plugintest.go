// Package plugintest checks whether a CSI plugin behaves as the agent expects. It creates a scratch
// volume, or uses a volume that the user specifies. It makes the same calls as the agent, including
// calls that fail or are interrupted. After each call, it checks the mounts on the host.
//
//	checks.go         the list of checks, with their names, conditions and functions
//	check_*.go        the functions of the checks
//	life.go           stages, publishes and unmounts the volume for the checks
//	undo.go           undoes a test when it ends, or an interrupted test before the next test
//
// A check changes only the scratch volume. Before the test creates a volume, directory or mount, it
// stores the name or path in plugin.Scratch, so that a later test can undo it.
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

// Plugins gives access to the plugins and their processes.
type Plugins interface {
	View(id string) plugin.View
	// Await waits until the plugin is ready. If the wait fails, Await returns an
	// ErrPluginUnavailable.
	Await(ctx context.Context, id string) error
	// Tested returns a client of the plugin's current process. The caller must get a new client for
	// each CSI call, because the process may have been replaced.
	Tested(id string) (Plugin, error)
	// MayKill returns an error if this agent is not allowed to kill the plugin's process.
	MayKill(id string) error
	// Kill kills the plugin's process, as if the process had crashed. It refuses if the plugin
	// serves any volume other than own.
	Kill(id, own string) error
}

// Records stores the record of a plugin test, which describes the test's possible leftovers.
type Records interface {
	Scratch(pluginID string) *plugin.Scratch
	// SaveScratch stores s durably. If s is nil, it deletes the record of the plugin's test.
	SaveScratch(ctx context.Context, pluginID string, s *plugin.Scratch) error
	// Registered returns the id of the registered volume with the given external id. The result ok
	// is false if there is none.
	Registered(driver, external string) (id string, ok bool)
	// InUse returns the volumes that a plugin serves on this host.
	InUse(pluginID string) []string
}

// Host reads and changes mounts on this host.
type Host interface {
	Look(ctx context.Context, path string) volume.Sight
	// Count returns the number of mounts that are stacked at a path.
	Count(path string) (int, error)
	// Own reports whether the mount shows one of the agent's own directories.
	Own(id volume.MountIdentity) (bool, error)
	MakeReadOnly(ctx context.Context, path string) error
	// Unmount removes the mount at path. If a normal unmount fails, it unmounts lazily.
	Unmount(ctx context.Context, path string) error
	// Remove removes an empty directory or file at path after an unmount.
	Remove(path string) error
}

// Paths returns the paths at which a test stages and publishes a volume.
type Paths interface {
	StagingPath(pluginID, id string) string
	TargetPath(pluginID, alloc, id string, private bool) string
	// MakeDir creates a directory for mounts, and its parents.
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
	// Ended is called when a test has ended and has no leftovers on the host.
	Ended func(pluginID string)
	// Halt is the reason why the agent does not call plugins; it is empty in normal operation.
	Halt string
	// Grace is how long to wait for a late mount. 0 means 2 s.
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

// enter marks the plugin as under test. It returns false if another test of the plugin is running.
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

// Recover undoes the leftovers of a test that an earlier agent began. It first waits until the
// plugin is ready. It returns early if ctx ends.
func (s *Service) Recover(ctx context.Context, id string) error {
	if s.Records.Scratch(id) == nil {
		return nil
	}
	if err := s.Plugins.Await(ctx, id); err != nil {
		return err
	}
	if !s.enter(id) {
		return nil // a new test is running and undoes the leftovers itself
	}
	defer s.leave(id)
	return s.clean(ctx, id, false)
}
