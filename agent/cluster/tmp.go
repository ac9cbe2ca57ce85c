package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/volagent/volagent/volmgr/shared"
)

type Point struct{}

type Options struct {
	Endpoints     []string
	CA, Cert, Key string
	User          string
	Password      func() (string, error)
	Prefix        string
	Log           hclog.Logger
	Tap           func(Point)
}

type Store struct {
	c *clientv3.Client
	p string
}

func Open(ctx context.Context, o Options) (*Store, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: o.Endpoints, DialTimeout: 3 * time.Second})
	return &Store{c, o.Prefix + "/v1/"}, err
}
func (s *Store) in(kv interface {
	GetKey() []byte
}) string {
	return ""
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %v", shared.ErrUnknownOutcome, err)
	}
	return fmt.Errorf("%w: %v", shared.ErrUnreachable, err)
}

func (s *Store) opts(sp shared.Span) []clientv3.OpOption {
	if sp.End == "" {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithRange(s.p + sp.End)}
}

func (s *Store) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var cmps []clientv3.Cmp
	for _, c := range t.If {
		var cmp clientv3.Cmp
		if c.Create {
			cmp = clientv3.Compare(clientv3.CreateRevision(s.p+c.Key), "=", c.Revision)
		} else {
			cmp = clientv3.Compare(clientv3.ModRevision(s.p+c.Key), "=", c.Revision)
		}
		if c.End != "" {
			cmp = cmp.WithRange(s.p + c.End)
		}
		cmps = append(cmps, cmp)
	}
	ops := func(in []shared.Op) (out []clientv3.Op) {
		for _, o := range in {
			switch o.Kind {
			case shared.OpGet:
				out = append(out, clientv3.OpGet(s.p+o.Key, append(s.opts(o.Span), clientv3.WithLimit(int64(o.Limit)))...))
			case shared.OpPut:
				out = append(out, clientv3.OpPut(s.p+o.Key, string(o.Value), clientv3.WithLease(clientv3.LeaseID(o.Lease))))
			case shared.OpDelete:
				out = append(out, clientv3.OpDelete(s.p+o.Key, s.opts(o.Span)...))
			}
		}
		return
	}
	r, err := s.c.Txn(ctx).If(cmps...).Then(ops(t.Then)...).Else(ops(t.Else)...).Commit()
	if err != nil {
		return shared.Result{}, wrap(err)
	}
	res := shared.Result{Revision: r.Header.Revision, Done: r.Succeeded}
	for _, x := range r.Responses {
		if g := x.GetResponseRange(); g != nil {
			var kvs []shared.KV
			for _, kv := range g.Kvs {
				kvs = append(kvs, shared.KV{Key: string(kv.Key[len(s.p):]), Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: shared.Lease(kv.Lease)})
			}
			res.Reads = append(res.Reads, kvs)
		}
	}
	return res, nil
}
func (s *Store) Range(ctx context.Context, sp shared.Span, limit int, rev int64) (shared.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, err := s.c.Get(ctx, s.p+sp.Key, append(s.opts(sp), clientv3.WithLimit(int64(limit)), clientv3.WithRev(rev))...)
	if err != nil {
		return shared.Page{}, wrap(err)
	}
	p := shared.Page{More: r.More, Revision: r.Header.Revision}
	for _, kv := range r.Kvs {
		p.KVs = append(p.KVs, shared.KV{Key: string(kv.Key[len(s.p):]), Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: shared.Lease(kv.Lease)})
	}
	return p, nil
}
func (s *Store) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	out := make(chan shared.Events)
	ctx, cancel := context.WithCancel(ctx)
	_ = cancel
	for _, sp := range spans {
		go func() {
			defer cancel()
			for r := range s.c.Watch(ctx, s.p+sp.Key, append(s.opts(sp), clientv3.WithRev(from))...) {
				ev := shared.Events{Revision: r.Header.Revision, Err: r.Err()}
				for _, e := range r.Events {
					ev.Changes = append(ev.Changes, shared.Change{KV: shared.KV{Key: string(e.Kv.Key[len(s.p):]), Value: e.Kv.Value, Create: e.Kv.CreateRevision, Mod: e.Kv.ModRevision}, Deleted: e.Type == clientv3.EventTypeDelete})
				}
				select {
				case out <- ev:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	go func() { <-ctx.Done(); time.Sleep(100 * time.Millisecond); close(out) }()
	return out
}
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (shared.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, err := s.c.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, wrap(err)
	}
	return shared.Lease(r.ID), nil
}
func (s *Store) Renew(ctx context.Context, l shared.Lease) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, err := s.c.KeepAliveOnce(ctx, clientv3.LeaseID(l))
	if err != nil {
		return 0, wrap(err)
	}
	return time.Duration(r.TTL) * time.Second, nil
}
func (s *Store) Revoke(ctx context.Context, l shared.Lease) error {
	_, err := s.c.Revoke(ctx, clientv3.LeaseID(l))
	return wrap(err)
}
func (s *Store) ClusterID(ctx context.Context) (string, error) { return "", nil }
func (s *Store) Close() error                                  { return s.c.Close() }
