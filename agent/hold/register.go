package hold

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// leaseTTL is how long a host counts as alive after its last renewal. The host renews its lease
// every renewEvery.
const (
	leaseTTL   = 15 * time.Second
	renewEvery = 5 * time.Second
)

// retries are the pauses between two registrations that failed.
var retries = backoff.Delays{First: 200 * time.Millisecond, Last: 5 * time.Second}

// Run registers the host and keeps it registered until ctx ends.
func (s *Service) Run(ctx context.Context) {
	s.mu.Lock()
	s.running = ctx
	s.mu.Unlock()

	for tries := 0; ctx.Err() == nil; {
		lease, err := s.register(ctx)
		if err == nil {
			tries = 0
			err = s.serve(ctx, lease)
		}
		if ctx.Err() != nil {
			return
		}

		s.setAway(s.words(err), err)
		if errors.Is(err, shared.ErrNewerSchema) {
			s.stayAlive(ctx)
		}
		tries++
		backoff.Pause(ctx, backoff.Jitter(retries.After(tries)))
	}
}

// stayAlive renews the lease of the last registration. A host whose release is older than the cluster's
// schema uses its volumes, so other hosts must not treat it as gone.
func (s *Service) stayAlive(ctx context.Context) {
	if lease := s.Records.Membership().Lease; lease != 0 {
		_, _, _ = s.Store.Renew(ctx, lease) // it may have ended
	}
}

// register raises the incarnation of this host in the cluster. It then compares the holds of this
// host with its records, before any step can use a hold. In a new epoch, it first writes the holds
// of the volumes that this host uses.
func (s *Service) register(ctx context.Context) (shared.Lease, error) {
	store, err := s.Store.ClusterID(ctx)
	if err != nil {
		return 0, err
	}

	self := shared.Self{
		Node: s.Node, Boot: s.Boot, Machine: s.Machine, DataDir: s.DataDir, Member: s.remembered(), StoreID: store,
		Registration: rand.Text(), Now: time.Now().UTC(),
	}
	if self.Undone, self.Quarantined, err = s.returnFenced(ctx); err != nil {
		return 0, err
	}
	forgotten, err := s.checkAccepted(ctx, self)
	if err != nil {
		return 0, err // a refused host tries again every few seconds, and writes nothing for that
	}
	self.Member.Forgotten = self.Member.Forgotten || forgotten

	lease, err := s.Store.Grant(ctx, leaseTTL)
	if err != nil {
		return 0, err
	}

	self.Lease = lease
	if err := s.Records.PutMembership(ctx, self.Member.Intends(self.Registration)); err != nil {
		return 0, fmt.Errorf("cannot store the intent to register: %w", err)
	}

	a, admitted, err := s.sendRegistration(ctx, self)
	if err != nil {
		return 0, errors.Join(err, s.Store.Revoke(context.WithoutCancel(ctx), lease))
	}

	era, member := a.Meta.Value.Era(), memberOf(self, a, admitted)
	if err := s.Records.PutMembership(ctx, member); err != nil {
		return 0, fmt.Errorf("cannot store the registration: %w", err)
	}

	s.mu.Lock()
	s.lease, s.seen, s.quarantined = lease, a.Revision, len(self.Quarantined) > 0
	clear(s.cached)
	s.mu.Unlock()

	s.setSuspended(a.Meta.Value)
	who := shared.Asker{Node: s.Node, Incarnation: admitted.Incarnation, Era: era}
	if member.Forgotten {
		s.Log.Error("the state of this host is older than the cluster's; its claims on shared volumes are lost", "incarnation", admitted.Incarnation)
	}
	defer s.renewDuring(ctx, lease)()
	if err := s.settleReturned(ctx, who, member.Forgotten, self.Undone); err != nil {
		return 0, err
	}
	if err := s.compareHolds(ctx, era.Epoch, member.Forgotten); err != nil {
		return 0, err
	}
	if member.Forgotten {
		member.Forgotten = false
		if err := s.Records.PutMembership(ctx, member); err != nil {
			return 0, fmt.Errorf("cannot store that the claims of this host are lost: %w", err)
		}
	}

	s.Events(volume.Event{
		Type: volume.EventNodeRegistered, Message: fmt.Sprintf("registered as host %q, incarnation %d, in etcd at %s", s.Node, who.Incarnation, s.Endpoints()),
	})
	s.setReachable(who)
	s.resolveScopes(ctx)
	s.registerAgain() // compares the state of the drain
	return lease, nil
}

// memberOf returns the membership of a host after its registration.
func memberOf(self shared.Self, a shared.Arrival, admitted shared.Admission) shared.Membership {
	m := self.Member.Intends(self.Registration)
	m.Forgotten = m.Forgotten || admitted.Forgotten
	m.ClusterID, m.Era, m.Incarnation = a.Meta.Value.ClusterID, a.Meta.Value.Era(), admitted.Incarnation
	m.Revision, m.StoreID, m.DataDir, m.Lease = a.Revision, self.StoreID, self.DataDir, self.Lease
	return m
}

// checkAccepted returns an error if the cluster would refuse the registration. The result forgotten says
// whether the state of this host is older than the cluster's.
func (s *Service) checkAccepted(ctx context.Context, self shared.Self) (forgotten bool, err error) {
	a, err := s.readArrival(ctx)
	if err != nil {
		return false, err
	}

	founds := !a.Meta.Exists() && self.Member.ClusterID == "" // a new cluster accepts every host
	if !founds {
		forgotten, err = s.checkArrival(ctx, a, self)
	}
	if errors.Is(err, shared.ErrWentBack) {
		err = errors.Join(err, s.suspend(ctx, a, self.Member))
	}
	return forgotten, err
}

// checkArrival returns an error if the cluster would refuse the registration, or if the cluster lacks a
// hold of this host without a reason. The result forgotten is as in Admission.
func (s *Service) checkArrival(ctx context.Context, a shared.Arrival, self shared.Self) (forgotten bool, err error) {
	admitted, err := a.Register(self)
	fresh := self.Member.Era == shared.Era{}
	restored := !fresh && a.Meta.Value.Era() != self.Member.Era
	if err != nil || restored {
		return admitted.Forgotten, err // after a restore of etcd, its holds may be older than the attachments
	}
	if err := s.checkNodeIDs(ctx); err != nil || fresh || admitted.Forgotten || self.Member.Forgotten {
		return admitted.Forgotten, err
	}
	return false, s.checkHolds(ctx, self.Member)
}

// sendRegistration sends the transaction that registers the host, until the store has decided. If
// the cluster has no data yet, it writes the first key.
func (s *Service) sendRegistration(ctx context.Context, self shared.Self) (shared.Arrival, shared.Admission, error) {
	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.ArrivalReads(self.Node)})
	for {
		if err != nil {
			return shared.Arrival{}, shared.Admission{}, err
		}

		a, err := shared.ParseArrival(self.Node, res)
		if err != nil {
			return a, shared.Admission{}, err
		}
		if incarnation, ok := a.Registered(self); ok {
			return a, shared.Admission{Incarnation: incarnation, Forgotten: false}, nil
		}

		if !a.Meta.Exists() && self.Member.ClusterID == "" {
			found, err := shared.DoSure(ctx, s.Store, shared.Found(rand.Text()))
			if err != nil {
				return a, shared.Admission{}, err
			}
			if err := shared.CheckFound(found); err != nil {
				return a, shared.Admission{}, err
			}
			res, err = s.Store.Do(ctx, shared.Txn{Then: shared.ArrivalReads(self.Node)})
			if err != nil {
				return a, shared.Admission{}, err
			}
			continue
		}

		admitted, err := a.Register(self)
		if err != nil {
			return a, admitted, err
		}
		res, err = shared.DoSure(ctx, s.Store, admitted.Txn)
		if err == nil && res.Done {
			return a, admitted, nil
		}
		if err != nil {
			return a, admitted, err
		}
	}
}

// serve keeps the lease and follows the cluster until the registration ends. It returns the reason.
func (s *Service) serve(ctx context.Context, lease shared.Lease) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	go s.follower.follow(ctx)
	go s.publisher.publishInfo(ctx, cancel)
	go s.publisher.tellStatus(ctx)
	failures := 0
	for tick := time.NewTicker(renewEvery); ; {
		asked := false
		select {
		case <-ctx.Done():
			tick.Stop()
			return context.Cause(ctx)
		case <-tick.C:
		case <-s.again:
			asked = true
		}

		if err := s.checkRegistration(ctx, lease, asked); err != nil {
			if errors.Is(err, shared.ErrUnreachable) {
				s.setAway(s.words(err), err)
				failures++
				backoff.Pause(ctx, backoff.Jitter(retries.After(failures)))
				s.registerAgain() // the registration stays valid if the lease still exists
				continue
			}
			tick.Stop()
			return err
		}
		failures = 0
	}
}

// checkRegistration renews the lease. It also checks that the cluster still shows the host as
// registered if something has asked for that, or if the cluster was not reachable before. Another
// reason is an answer with an older revision, because etcd may have been restored. An idle host needs
// no such check, because it watches its own key.
func (s *Service) checkRegistration(ctx context.Context, lease shared.Lease, asked bool) (err error) {
	_, revision, err := s.Store.Renew(ctx, lease)
	if err != nil {
		return err
	}

	s.mu.Lock()
	who, compare, seen := s.who, s.compare || s.away != "", s.seen
	s.compare = false // before the cluster is read, because a later change needs another comparison
	quarantined := s.quarantined
	unsettled := !s.settleAt.IsZero() && time.Now().After(s.settleAt)
	s.mu.Unlock()
	defer func() {
		if compare && err != nil {
			s.mu.Lock()
			s.compare = true
			s.mu.Unlock()
		}
	}()
	older := revision < seen // after a restore of etcd, or on a member that lags behind
	if !asked && !compare && !older && !unsettled && !quarantined {
		return nil
	}

	a, err := s.readArrival(ctx)
	if err != nil {
		return err
	}
	if err := shared.CheckRegistered(a.Meta, a.Node, who); err != nil {
		return err
	}
	if err := s.noteRevision(a.Revision, seen); err != nil {
		return err
	}
	s.setSuspended(a.Meta.Value)
	if err := s.compareDrain(ctx, a, who); err != nil {
		return err
	}
	if err := s.compareQuarantine(ctx, a, who); err != nil {
		return err
	}
	if unsettled {
		if err := s.settle(ctx, who, false); err != nil {
			return err
		}
	}
	if !compare {
		return nil
	}

	defer s.renewDuring(ctx, lease)()
	if err := s.compareHolds(ctx, a.Meta.Value.Epoch, false); err != nil {
		return err
	}
	if err := s.follower.rereadAll(ctx); err != nil {
		return err
	}
	s.setReachable(who)
	s.resolveScopes(ctx)
	return nil
}

// renewDuring renews the lease while a long comparison runs, until the result stop is called.
func (s *Service) renewDuring(ctx context.Context, lease shared.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for backoff.Pause(ctx, renewEvery); ctx.Err() == nil; backoff.Pause(ctx, renewEvery) {
			_, _, _ = s.Store.Renew(ctx, lease) // the next check of the registration reports a lost lease
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

// Leave says in the cluster that the agent stops in order. It does nothing if the host is not
// registered.
func (s *Service) Leave(ctx context.Context) error {
	who, err := s.Asker()
	if err != nil {
		return nil //nolint:nilerr // without a registration, no other host expects this one
	}

	res, err := s.Store.Do(ctx, shared.Txn{Then: shared.ArrivalReads(s.Node)})
	for err == nil {
		a, perr := shared.ParseArrival(s.Node, res)
		if perr != nil {
			return perr
		}

		now := time.Now().UTC()
		txn, lerr := a.Leave(who, now, now.Add(shared.AwayFor))
		if lerr != nil {
			return lerr
		}
		if res, err = shared.DoSure(ctx, s.Store, txn); err == nil && res.Done {
			return nil
		}
	}

	return err
}
