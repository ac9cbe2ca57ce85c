// Package cluster keeps the shared state of a cluster of hosts in etcd. It implements shared.Store,
// and is the only package that imports the etcd client.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/volmgr/shared"
)

// DefaultTimeout is the longest time that a call of a Store takes if Options sets no other.
const DefaultTimeout = 5 * time.Second

// defaultProgress is the time between two requests for the progress of the watches. One request in
// this time and for each host does not burden etcd, also with 1,000 hosts.
const defaultProgress = time.Minute

// Options are the properties of a Store.
type Options struct {
	// Endpoints are the URLs of etcd, with http or https. All have the same scheme.
	Endpoints []string
	// CA, Cert and Key are the paths of files in PEM format, or empty. A change of Cert and Key takes
	// effect with the next connection.
	CA, Cert, Key string
	// User and Password are the credentials, or empty and nil. Password is called for each login.
	User     string
	Password func() (string, error)
	// Prefix begins all keys, which have the form <prefix>/v1/<key>. It is not empty.
	Prefix string
	// Timeout limits each call. 0 means DefaultTimeout.
	Timeout time.Duration
	// Progress is the time between two requests for the progress of the watches. 0 means one minute.
	Progress time.Duration
	// Log receives one message when etcd stops answering, and one when it answers again.
	Log hclog.Logger
	// Tap is called before and after each transaction. It is for tests, and may be nil.
	Tap func(Point)
}

// Point is a moment before or after a transaction.
type Point struct {
	After bool // the transaction has been answered, or has failed
	Txn   shared.Txn
}

// Store is a shared.Store in etcd.
type Store struct {
	o       Options
	keys    codec
	client  *clientv3.Client
	kv      pb.KVClient
	lease   pb.LeaseClient
	status  pb.MaintenanceClient
	login   *login
	ctx     context.Context // ends with Close
	close   context.CancelFunc
	watches sync.WaitGroup

	checked atomic.Bool // the version of the server has been checked
	silent  atomic.Bool // etcd did not answer the last call

	progress sync.Once // starts the goroutine that asks for the progress of the watches
	watching atomic.Int64

	mu        sync.Mutex
	etcdID    uint64 // id of the etcd cluster, or 0 before the first answer
	endpoints []string
}

var _ shared.Store = (*Store)(nil)

// Open returns a Store. It does not wait for a connection, so it succeeds also if etcd is not
// reachable. It returns an error if the options are wrong or a file cannot be read. The Store lives
// until Close, or until ctx ends.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Prefix == "" {
		return nil, errors.New("cannot open the cluster's etcd: the prefix is empty")
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Progress == 0 {
		o.Progress = defaultProgress
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}

	s := &Store{o: o, keys: codec(o.Prefix + "/v1/"), login: &login{user: o.User, password: o.Password}, endpoints: o.Endpoints}
	s.ctx, s.close = context.WithCancel(ctx)
	client, err := dial(s.ctx, o, s.login)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("cannot open the cluster's etcd: %w", err)
	}
	s.client = client
	conn := client.ActiveConnection()
	s.kv, s.lease, s.status = pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewMaintenanceClient(conn)
	s.login.client = pb.NewAuthClient(conn)
	return s, nil
}

// Close implements shared.Store.
func (s *Store) Close() error {
	s.close()
	err := s.client.Close()
	s.watches.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // the client reports the end of its own context
	}
	return err
}

// Endpoints returns the URLs of etcd.
func (s *Store) Endpoints() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.endpoints)
}

// SetEndpoints replaces the URLs of etcd. Calls and watches continue on the connections that stay, and
// watches whose connection ends begin again on another one. All endpoints must belong to the same etcd
// cluster as before, and have TLS or none as before.
func (s *Store) SetEndpoints(endpoints []string) error {
	err := checkEndpoints(endpoints)
	if err == nil && strings.HasPrefix(endpoints[0], "https://") != strings.HasPrefix(s.o.Endpoints[0], "https://") {
		err = fmt.Errorf("the endpoint %q differs from %q in the use of TLS", endpoints[0], s.o.Endpoints[0])
	}
	if err != nil {
		return fmt.Errorf("cannot use other endpoints of etcd: %w", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = slices.Clone(endpoints)
	s.client.SetEndpoints(s.endpoints...)
	return nil
}

// ClusterID implements shared.Store.
func (s *Store) ClusterID(ctx context.Context) (string, error) {
	s.mu.Lock()
	s.etcdID = 0 // the next answer sets it
	s.mu.Unlock()

	if _, err := s.Range(ctx, shared.Span{Key: "meta"}, 1, 0); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.FormatUint(s.etcdID, 16), nil
}

// answered checks the header of an answer. All endpoints must belong to the same etcd cluster.
func (s *Store) answered(h *pb.ResponseHeader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcdID == 0 {
		s.etcdID = h.GetClusterId()
	}
	if id := h.GetClusterId(); id != s.etcdID {
		return fmt.Errorf("the endpoints belong to different etcd clusters, %x and %x: %w", s.etcdID, id, shared.ErrUnsupported)
	}
	return nil
}

// attempt makes one call to etcd. call gets a context with a deadline. attempt logs in first if that is necessary. If etcd refuses the token, which it then does
// before it executes the request, attempt logs in and calls again.
func (s *Store) attempt(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	inner, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()

	var err error
	for again := false; ; again = true {
		var sent sentMark
		if err = s.check(inner); err == nil {
			err = classify(call(sent.in(inner)), sent.Load())
		}
		if again || !errors.Is(err, errToken) {
			break
		}
		if failed := s.login.renew(inner); failed != nil {
			err = failed
			break
		}
	}
	err = withContext(ctx, err)
	s.note(err)
	return err
}

// check logs in, and checks the version of the server once.
func (s *Store) check(ctx context.Context) error {
	if err := s.login.ensure(ctx); err != nil {
		return err
	}
	if s.checked.Load() {
		return nil
	}
	r, err := s.status.Status(ctx, &pb.StatusRequest{}, callOptions()...)
	if err != nil {
		return notExecuted(classify(err, false))
	}
	if err := checkVersion(r.GetVersion()); err != nil {
		return err
	}
	if err := s.answered(r.GetHeader()); err != nil {
		return err
	}
	s.checked.Store(true)
	return nil
}

// repeat makes a call that may be executed more than once. It calls again while etcd does not answer
// and the time of the call is not over. An attempt gets only a part of the time, because the endpoint
// may be frozen; the next attempt goes to another endpoint.
func (s *Store) repeat(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	for {
		err := s.attempt(ctx, s.o.Timeout/3, call)
		if err == nil || !errors.Is(err, shared.ErrUnreachable) {
			return err
		}
		select {
		case <-ctx.Done():
			return notExecuted(err)
		case <-s.ctx.Done():
			return notExecuted(err)
		case <-time.After(repeatAfter):
		}
	}
}

// repeatAfter is the wait between two attempts of repeat.
const repeatAfter = 50 * time.Millisecond

// note writes a message to the log when etcd stops answering or answers again. A call that its caller
// has cancelled shows neither.
func (s *Store) note(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}

	silent := errors.Is(err, shared.ErrUnreachable)
	if silent == s.silent.Swap(silent) {
		return
	}
	if silent {
		s.o.Log.Warn("etcd does not answer; operations that need the cluster wait", "endpoints", s.Endpoints(), "error", err)
		return
	}
	s.o.Log.Info("etcd answers again", "endpoints", s.Endpoints())
}

// callOptions returns the gRPC options of each call.
func callOptions() []grpc.CallOption {
	return []grpc.CallOption{
		grpc.WaitForReady(true), // a connection that is being replaced is no failure
		grpc.MaxCallSendMsgSize(maxMessage),
		grpc.MaxCallRecvMsgSize(maxMessage),
	}
}

// maxMessage is the limit for gRPC messages. The limits of the server are lower.
const maxMessage = 1 << 30
