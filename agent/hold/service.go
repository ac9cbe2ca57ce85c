// Package hold makes this host a member of a cluster, and carries out the decisions of package
// volmgr/shared. It registers the host, and gets and gives up holds on shared volumes. It also
// announces controller calls, and reads and changes the definitions of shared volumes.
//
//	service.go      Service, its dependencies, and its view of the cluster
//	register.go     the registration and the lease of this host
//	nodeids.go      the CSI node ids of this host's plugins
//	compare.go      the comparison of the stored holds with those of the cluster
//	follow.go       changes in the cluster that concern this host
//	decide.go       one decision: read, decide, execute, repeat
//	step.go         the steps of a volume that need the cluster
//	define.go       the definitions that this host needs
//	definitions.go  the definitions of all shared volumes, for package provision
//	share.go        volumes that change between the scopes host and shared
//	notice.go       changed definitions, and the questions of other hosts
//	waiting.go      volumes that wait for another host
//	lanes.go        the order of the writes
//	status.go       what this host tells people about itself
//	restore.go      a store that was restored from a backup
//	figures.go      the state of this service for people and metrics
//
// While the cluster's store is not reachable, the service refuses each change at once, and all
// volumes with a hold stay usable.
package hold

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

	// Reachable is called when the cluster has become usable.
	Reachable func()

	// Uses returns the id under which this host uses a storage volume on its own, or an empty text.
	Uses func(driver, external string) string

	// Info describes the plugins of this host.
	Info func() shared.NodeInfo

	// AwaitPlugin waits until a plugin has answered, or returns an error if it does not start.
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

// Service is this host's part in the cluster. Its methods are safe for concurrent use.
type Service struct {
	Options

	mu   sync.Mutex
	who  shared.Asker // incarnation 0 until the host is registered
	away string       // why the cluster is not usable; empty if it is
	// since is the time at which away was set. It does not change while the reason only gets
	// another wording.
	since time.Time
	told  bool // an event has told that the cluster is not usable

	silent  bool // away is set only because the store does not answer
	refused bool // the store has refused this host since the last registration

	lease shared.Lease // of the last registration

	// seen is the newest revision of the store that this host has seen in its epoch.
	seen int64
	// suspended is set while the cluster admits no writer after a restore. This host then loses no
	// hold, and gives up no hold that its records do not explain.
	suspended bool

	compare bool // the next check of the registration also compares the holds

	cached  map[string]shared.Situation // situations of volumes with a step in progress
	waiting map[string]context.CancelFunc
	ending  map[string]string // operations of the holds that this host is giving up, by volume
	moving  map[string]bool   // volumes whose scope is being changed
	strays  map[string]bool   // volumes for which the cluster may show a hold that no record explains
	again   chan struct{}     // asks Run to register again
	plugins chan struct{}     // asks for another write of the plugins of this host

	lanes   *lanes
	lag     lag
	changed chan struct{} // asks for a new status
	calls   int           // the announced controller calls in flight of this host

	running context.Context // ends with Run; set before the first step
}

// New returns a Service that does nothing until Run starts.
func New(o Options) *Service {
	return &Service{
		Options: o, away: "this host is not registered in the cluster yet", since: time.Now(),
		cached: map[string]shared.Situation{}, waiting: map[string]context.CancelFunc{}, ending: map[string]string{}, moving: map[string]bool{}, strays: map[string]bool{},
		again: make(chan struct{}, 1), plugins: make(chan struct{}, 1),
		lanes: newLanes(), changed: make(chan struct{}, 1),
		running: context.Background(),
	}
}

// Cluster returns the state of the cluster for a decision about a volume.
func (s *Service) Cluster(volume.Record) volume.Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()

	c := volume.Cluster{}
	if s.away != "" {
		c.Away, c.Silent = s.awayWords(), s.silent
	}
	return c
}

// awayWords describes why the cluster is not usable. The caller holds mu.
func (s *Service) awayWords() string {
	return fmt.Sprintf("%s, since %s", s.away, s.since.UTC().Format(time.RFC3339))
}

// Asker returns this host for a transaction. It fails while the host is not registered.
func (s *Service) Asker() (shared.Asker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.who.Incarnation == 0 || s.away != "" {
		return s.who, volume.Errorf(volume.ErrPluginUnavailable, "%s", s.awayWords()).WithHint("is etcd up, and does its log show a reason? See cluster.endpoints in the configuration of volagent")
	}
	return s.who, nil
}

// setAway records that the cluster is not usable, and why. The reason describes the error cause.
func (s *Service) setAway(reason string, cause error) {
	defer s.wakeTrusting()
	s.mu.Lock()
	s.noteSilence(cause)
	tell := !s.told
	if s.away == "" {
		s.since = time.Now()
	}
	s.away, s.told = reason, true
	s.mu.Unlock()

	if tell {
		s.Events(volume.Event{Type: volume.EventClusterUnreachable, Message: reason + "; the volumes of this host stay mounted"})
	}
}

// setReachable records that the cluster is usable, and wakes the volumes that waited for it.
func (s *Service) setReachable(who shared.Asker) {
	s.mu.Lock()
	was, told := s.away, s.told
	s.away, s.told, s.who = "", false, who
	s.silent, s.refused = false, false
	s.mu.Unlock()

	if was == "" {
		return
	}
	if told {
		s.Events(volume.Event{Type: volume.EventClusterReachable, Message: "etcd at " + s.Endpoints() + " answers again"})
	}

	for _, r := range s.Records.Volumes() {
		if r.Volume.Shared {
			s.Wake(r.Volume.ID)
		}
	}
	s.Reachable()
}

// noteError examines an error of the store or of a decision. It records that the cluster is not
// usable, or asks for a new registration. A step that its caller has cancelled says nothing about the
// cluster.
func (s *Service) noteError(err error) {
	switch {
	case errors.Is(err, context.Canceled):
	case errors.Is(err, shared.ErrUnreachable), errors.Is(err, shared.ErrFull), errors.Is(err, shared.ErrDenied), errors.Is(err, shared.ErrUnsupported):
		s.setAway(shared.Unusable(s.Endpoints(), err), err)
		s.registerAgain()
	case errors.Is(err, shared.ErrWentBack):
		s.setAway(s.words(err), err)
		s.registerAgain()
	case errors.Is(err, shared.ErrUnregistered):
		s.registerAgain()
	}
}

// registerAgain asks Run to check the registration.
func (s *Service) registerAgain() {
	select {
	case s.again <- struct{}{}:
	default: // Run has not seen the last request yet
	}
}
