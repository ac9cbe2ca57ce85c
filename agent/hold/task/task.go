// Package task passes controller calls between hosts. A host whose plugin has no controller asks
// another host to make the controller calls for shared volumes. These calls attach, detach, create,
// expand, modify, snapshot and delete volumes.
//
//	task.go       Service and its dependencies
//	form.go       how requests and answers travel
//	peers.go      which hosts can make the calls of a plugin
//	lend.go       the controllers of other hosts, for package provision
//	request.go    the side of the host that asks
//	execute.go    the side of the host that makes the call
//
// Package volmgr/shared decides each transaction, and describes the protocol at its type Task.
package task

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the defaults of the times in Options.
const (
	defaultDeadline = time.Minute     // of a controller call whose plugin states none
	defaultTake     = 5 * time.Second // for an executor to take a task
	defaultEvery    = time.Second     // between two looks at a task without an event
)

// Box seals the answers in results for one host.
type Box interface {
	// Seal encrypts a message for the host with the given public key.
	Seal(message, key []byte) ([]byte, error)
	// Open decrypts a message to this host.
	Open(sealed []byte) ([]byte, error)
}

// Options are the dependencies of a Service.
type Options struct {
	Store shared.Store
	Node  string

	// Asker returns this host for a transaction. It fails while the host is not registered.
	Asker func() (shared.Asker, error)

	// View returns the state of a plugin of this host, and Plugin its client for a call.
	View   func(pluginID string) plugin.View
	Plugin func(v volume.Volume, k call.Method) (call.Caller, error)

	// Secrets resolves all references to secrets of a volume on this host.
	Secrets func(volume.Volume) (call.Secrets, error)

	Box Box

	// PeersChanged is called when other hosts can make calls that they could not make before, or the
	// reverse.
	PeersChanged func()

	// Overtaken is called after this host has made a ControllerPublishVolume for another host that was
	// taken over meanwhile. Within the given time, the call may still take effect.
	Overtaken func(id, node, nodeID string, wait time.Duration)

	// Detached is called after this host has detached a lost host for the host that fences it. It returns
	// an error if the driver still lists the lost host.
	Detached func(ctx context.Context, v volume.Volume, nodeID string) error

	Take  time.Duration // limit for an executor to take a task; 0 means the default
	Every time.Duration // interval of looks without an event; 0 means the default
	Log   hclog.Logger
}

// Service asks other hosts to make controller calls, and makes calls for them. Its methods are safe
// for concurrent use.
type Service struct {
	Options

	mu      sync.Mutex
	peers   peers
	peersAt time.Time       // when the peers were read last
	wanted  time.Time       // when a view last depended on the peers
	ask     chan struct{}   // asks refresh to follow the peers
	running map[string]bool // volumes with a task in progress on this host; true if there may be another task
	tasks   sync.WaitGroup
}

// New returns a Service that does nothing until Run starts.
func New(o Options) *Service {
	if o.Take == 0 {
		o.Take = defaultTake
	}
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	return &Service{Options: o, running: map[string]bool{}, ask: make(chan struct{}, 1)}
}

// Run makes the calls that other hosts ask for, until ctx ends. It then waits for the calls in
// progress.
func (s *Service) Run(ctx context.Context) {
	go s.refresh(ctx)
	s.follow(ctx)
	s.tasks.Wait()
}

// errBusy means that other hosts change the same keys all the time.
var errBusy = errors.New("other hosts change the task all the time")

// mostTries limits how often a decision is repeated because other hosts change the same keys.
const mostTries = 50

// decide executes a decision about a task, and decides again while other hosts change its keys. It
// does nothing for an empty transaction. It returns the errand on which the last decision was based.
func (s *Service) decide(ctx context.Context, executor, id string, by func(shared.Errand) (shared.Txn, error)) (shared.Errand, error) {
	e, err := s.read(ctx, executor, id)
	for range mostTries {
		if err != nil {
			return e, err
		}
		txn, derr := by(e)
		if derr != nil || len(txn.Then) == 0 {
			return e, derr
		}

		res, derr := shared.DoSure(ctx, s.Store, txn)
		if derr != nil || res.Done {
			return e, derr
		}
		e, err = shared.ParseErrand(s.Node, executor, id, res)
	}

	return e, errBusy
}

// read reads the keys about a task.
func (s *Service) read(ctx context.Context, executor, id string) (shared.Errand, error) {
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.ErrandReads(s.Node, executor, id)})
	if err != nil {
		return shared.Errand{}, err
	}
	return shared.ParseErrand(s.Node, executor, id, res)
}

// deadline returns the deadline of a controller call of a plugin.
func deadline(d time.Duration) time.Duration {
	if d <= 0 {
		return defaultDeadline
	}
	return d
}
