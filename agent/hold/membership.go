package hold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// membership is the state of this host in the cluster: whether the host is registered, and whether the cluster
// is usable. Its lock also guards the state of the parts that build on it.
type membership struct {
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

	// settleAt is the time of the next try to write the holds of this host that the cluster has refused
	// in the present epoch. It is zero if all holds are written.
	settleAt time.Time

	// fencedAt is when this host has first seen that it is fenced. It is zero if it is not.
	fencedAt time.Time

	quarantined bool // the cluster shows that this host has volumes mounted that it has lost

	compare bool          // the next check of the registration also compares the holds
	again   chan struct{} // asks Run to register again
	calls   atomic.Int64  // the announced controller calls in flight of this host

	running context.Context // ends with Run; set before the first step
}

// Cluster returns the state of the cluster for a decision about a volume.
func (s *membership) Cluster(volume.Record) volume.Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()

	c := volume.Cluster{}
	if s.away != "" {
		c.Away, c.Silent = s.awayWords(), s.silent
	}
	return c
}

// awayWords describes why the cluster is not usable. The caller holds mu.
func (s *membership) awayWords() string {
	return fmt.Sprintf("%s, since %s", s.away, s.since.UTC().Format(time.RFC3339))
}

// Asker returns this host for a transaction. It fails while the host is not registered.
func (s *membership) Asker() (shared.Asker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.who.Incarnation == 0 || s.away != "" {
		return s.who, volume.Errorf(volume.ErrPluginUnavailable, "%s", s.awayWords()).WithHint("is etcd up, and does its log show a reason? See cluster.endpoints in the configuration of volagent")
	}
	return s.who, nil
}

// Lease returns the lease of the last registration. It is 0 until the host is registered.
func (s *membership) Lease() shared.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.lease
}

// Usable returns an error with the reason and its time if the cluster is not usable.
func (s *membership) Usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.away == "" {
		return nil
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "%s", s.awayWords()).WithHint("volctl node status")
}

// setAway records that the cluster is not usable, and why. The reason describes the error cause.
func (s *membership) setAway(reason string, cause error) {
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
func (s *membership) setReachable(who shared.Asker) {
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
func (s *membership) noteError(err error) {
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
func (s *membership) registerAgain() {
	select {
	case s.again <- struct{}{}:
	default: // Run has not seen the last request yet
	}
}

// CompareAgain makes the service compare the holds soon. It does not wait.
func (s *membership) CompareAgain() {
	s.mu.Lock()
	s.compare = true
	s.mu.Unlock()
	s.registerAgain()
}

// words describes why the host is not a working member of the cluster.
func (s *membership) words(err error) string {
	var refused *volume.Error
	if errors.Is(err, shared.ErrWentBack) && errors.As(err, &refused) {
		return refused.Message + "; " + refused.Hint
	}
	if errors.As(err, &refused) {
		return "the cluster does not accept this host: " + refused.Message
	}
	return shared.Unusable(s.Endpoints(), err)
}

// cannotLook returns the error for a volume whose definition cannot be read now.
func (s *membership) cannotLook(id string, err error) error {
	var refused *volume.Error
	passing := errors.Is(err, volume.ErrPluginUnavailable) || errors.Is(err, shared.ErrWentBack)
	if errors.As(err, &refused) && !passing {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	why := err.Error()
	if s.away != "" {
		why = s.awayWords()
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "cannot look for volume %q in the cluster: %s", id, why).WithHint("is etcd up, and does its log show a reason? See cluster.endpoints in the configuration of volagent")
}
