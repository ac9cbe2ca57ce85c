package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/volagent/volagent/volmgr/shared"
)

// Grant implements shared.Store. If the answer is lost, the server may have made a lease that no key
// has, which ends by itself.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (shared.Lease, error) {
	var r *pb.LeaseGrantResponse
	err := s.attempt(ctx, s.o.Timeout, func(ctx context.Context) (err error) {
		r, err = s.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64(ttl / time.Second)}, callOptions()...)
		return err
	})
	if err == nil {
		err = s.answered(r.GetHeader())
	}
	if err != nil {
		return 0, fmt.Errorf("cannot get a lease: %w", notExecuted(err))
	}
	return shared.Lease(r.GetID()), nil
}

// Renew implements shared.Store.
func (s *Store) Renew(ctx context.Context, l shared.Lease) (left time.Duration, revision int64, err error) {
	var r *pb.LeaseKeepAliveResponse
	err = s.repeat(ctx, func(ctx context.Context) (err error) {
		r, err = s.renew(ctx, l)
		return err
	})
	if err == nil && r.GetTTL() <= 0 {
		err = shared.ErrLeaseGone
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cannot renew the lease: %w", err)
	}
	return time.Duration(r.GetTTL()) * time.Second, r.GetHeader().GetRevision(), nil
}

// renew sends one request on a stream of its own.
func (s *Store) renew(ctx context.Context, l shared.Lease) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := s.lease.LeaseKeepAlive(ctx, callOptions()...)
	if err != nil {
		return nil, err
	}
	// Recv returns the reason for which Send failed.
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l)})
	return stream.Recv()
}

// Revoke implements shared.Store.
func (s *Store) Revoke(ctx context.Context, l shared.Lease) error {
	err := s.repeat(ctx, func(ctx context.Context) error {
		_, err := s.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(l)}, callOptions()...)
		return err
	})
	if err != nil && !errors.Is(err, shared.ErrLeaseGone) {
		return fmt.Errorf("cannot end the lease: %w", err)
	}
	return nil
}
