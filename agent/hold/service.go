// Package hold makes this host a member of a cluster, and carries out the decisions of package
// volmgr/shared. It registers the host, and gets and gives up holds on shared volumes. It also
// announces controller calls, and reads and changes the definitions of shared volumes.
//
//	service.go      Service, its dependencies and its parts
//	membership.go   membership: whether this host is registered, and whether the cluster is usable
//	register.go     the registration and the lease of this host
//	keys.go         keys: reads of the keys of a volume
//	decide.go       one decision: read, decide, execute, repeat
//	scopes.go       scopes: whether a volume belongs to this host or to the cluster
//	compare.go      ownHolds: the holds of this host, in its records and in the cluster
//	restore.go      a store that was restored from a backup
//	fenced.go       the return of this host after a fencing
//	trust.go        holds that this host uses while the store is silent
//	follow.go       follower: changes in the cluster that concern this host
//	notice.go       changed definitions, and the questions of other hosts
//	waiting.go      waits: volumes that wait for another host
//	step.go         Steps: the steps of a volume that need the cluster
//	definitions.go  Definitions: the definitions of all shared volumes, for package provision
//	share.go        Definitions: volumes that change between the scopes host and shared
//	questions.go    the questions of this host to all others
//	publish.go      publisher: the plugins of this host, for the other hosts
//	nodeids.go      the CSI node ids of this host's plugins
//	status.go       what this host tells people about itself
//	lanes.go        the order of the writes
//	figures.go      the state of this service for people and metrics
//
// While the cluster's store is not reachable, the service refuses each change at once, and all
// volumes with a hold stay usable.
package hold

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Records reads and changes the volume records of this host.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record

	// Membership returns the stored membership of this host.
	Membership() shared.Membership

	// PutMembership stores the membership, and waits until it is on disk.
	PutMembership(ctx context.Context, m shared.Membership) error

	// ChangeShared changes the record of a shared volume, and waits until it is on disk. The record
	// may not exist; it is then empty. Nothing is stored if fn returns false. The key may also be
	// that of a leftover record.
	ChangeShared(ctx context.Context, key string, fn func(r volume.Record, ok bool) (volume.Record, bool)) error

	// Leftovers returns the leftover records. Each may have a hold of a forced deregister.
	Leftovers() []volume.Record

	// ForgetIdle deletes the record of a shared volume if it is idle.
	ForgetIdle(ctx context.Context, id string) error
}

// Host performs single steps on this host, as in package reconcile.
type Host interface {
	Observe(ctx context.Context, r volume.Record, now volume.Glimpse) volume.Observed
	Do(ctx context.Context, r volume.Record, a volume.Action, p plugin.View) volume.Outcome
}

// Options are the dependencies of a Service.
type Options struct {
	Store     shared.Store
	Endpoints func() string // the store's addresses, for messages
	Node      string
	Boot      string
	Machine   shared.Machine
	DataDir   string // identifies the data directory

	Records Records
	Host    Host

	// StagingPath returns the path at which a volume is staged on this host.
	StagingPath func(pluginID, id string) string

	// Wake makes the queue look at a volume again.
	Wake func(id string)

	// Reachable is called when the cluster has become usable, and when a person has resumed it.
	Reachable func()

	// Uses returns the id under which this host uses a storage volume on its own, or an empty text.
	Uses func(driver, external string) string

	// Info describes the plugins of this host.
	Info func() shared.NodeInfo

	// AwaitPlugin waits until the CSI node id of a plugin is known, or returns an error if the plugin does
	// not start.
	AwaitPlugin func(ctx context.Context, id string) error

	// Status describes the shared volumes of this host for people.
	Status func() shared.Status

	// Concerned reports whether the removal of a shared volume by another host concerns this host.
	Concerned func(id string) bool

	// Draining reports whether a person drains this host.
	Draining func() bool

	// Admitted is called with the duration of each admission.
	Admitted func(time.Duration)

	Events func(...volume.Event)
	Log    hclog.Logger
}

// Service is this host's part in the cluster. Its methods are safe for concurrent use. Each of its parts
// has a different job, and an arrow leads to a part that builds on the one before:
//
//	membership ─► keys ─► scopes ─► ownHolds ─► Service, follower, publisher, Steps, Definitions
//	          └───► waits
type Service struct {
	*ownHolds

	waits     *waits
	follower  *follower
	publisher *publisher
}

// New returns a Service that does nothing until Run starts.
func New(o Options) *Service {
	k := &keys{
		membership: &membership{
			Options: o, away: "this host is not registered in the cluster yet", since: time.Now(),
			again: make(chan struct{}, 1), running: context.Background(),
		},
		cached: map[string]shared.Situation{}, lanes: newLanes(),
	}
	own := &ownHolds{scopes: &scopes{keys: k, moving: map[string]bool{}}, ending: map[string]string{}, strays: map[string]bool{}}
	return &Service{
		ownHolds: own, waits: &waits{keys: k, waiting: map[string]context.CancelFunc{}, wanted: map[string]bool{}, doubted: map[string]bool{}},
		follower:  &follower{ownHolds: own},
		publisher: &publisher{ownHolds: own, plugins: make(chan struct{}, 1), changed: make(chan struct{}, 1)},
	}
}

// Steps returns the steps of volumes.
func (s *Service) Steps() Steps {
	return Steps{ownHolds: s.ownHolds, waits: s.waits, definitions: s.Definitions()}
}

// Definitions returns the definitions of shared volumes.
func (s *Service) Definitions() Definitions { return Definitions{s.ownHolds} }

// PluginsChanged writes the plugins of this host to the cluster again.
func (s *Service) PluginsChanged() { s.publisher.pluginsChanged() }

// StatusChanged asks for a new status of this host in the cluster.
func (s *Service) StatusChanged() { s.publisher.statusChanged() }

// Idle forgets the record of a shared volume that this host no longer uses.
func (s *Service) Idle(ctx context.Context, r volume.Record) error {
	s.setEnding(r.Volume.ID, "")
	s.waits.stopAwaiting(r.Volume.ID)
	s.takeCached(r.Volume.ID)
	if err := s.Records.ForgetIdle(ctx, r.Volume.ID); err != nil {
		return err
	}
	return s.explainStray(ctx, r.Volume.ID)
}
