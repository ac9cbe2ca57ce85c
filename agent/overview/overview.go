// Package overview reads a cluster for people: its shared volumes, its hosts, and their holds. It reads from
// the store on demand and page by page, and keeps nothing. It also carries out the decisions of a person
// about a host: its fencing and its replacement.
//
//	overview.go  Service, and the reads in pages
//	volumes.go   the shared volumes with their holds
//	hosts.go     the hosts
//	fence.go     the statement of a person that a host is switched off, and its end
//	replace.go   the replacement of a host whose machine is gone
package overview

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Membership is the part of this host in the cluster.
type Membership interface {
	// Usable returns an error with the reason and its time if the cluster is not reachable.
	Usable() error

	// Asker returns this host for a transaction. It fails while the host is not registered.
	Asker() (shared.Asker, error)
}

// Service reads from the store of a cluster. Its methods are safe for concurrent use.
type Service struct {
	Store     shared.Store
	Endpoints func() string // the store's addresses, for messages
	Node      string        // the name of this host
	Member    Membership
	Now       func() time.Time

	// Replaced is called after a replacement or a fencing. The attachments of the host must then end.
	Replaced func()

	// TakeProven drops the holds of a host that is proven off and that other hosts wait for. It returns
	// their volumes.
	TakeProven func(ctx context.Context, who shared.Asker, host string) []string

	Hooks Hooks
}

// readWithin limits a read for a person. If the store has just become unreachable, the answer must
// not take much longer than a healthy one.
const readWithin = 5 * time.Second

// read executes operations that only read.
func (s *Service) read(ctx context.Context, ops ...shared.Op) ([][]shared.KV, error) {
	r, err := s.Store.Do(ctx, shared.Txn{Then: ops})
	return r.Reads, err
}

// begin returns a context for a read. It fails at once if the cluster is known to be unreachable.
func (s *Service) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := s.Member.Usable(); err != nil {
		return ctx, func() {}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	return ctx, cancel, nil
}

// unreadable returns the error of a read for people.
func (s *Service) unreadable(what string, err error) error {
	return volume.Errorf(volume.ErrPluginUnavailable, "cannot read %s: %s", what, shared.Unusable(s.Endpoints(), err)).WithHint("volctl node status")
}
