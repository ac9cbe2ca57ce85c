// Package member talks to the members of a cluster: it lists and changes the members, and reads and
// writes the keys of volagent-etcd. It uses etcd's gRPC services directly, because each call must go
// to one known member, and a call that fails must be explained to a person.
package member

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/reason"
	"github.com/volagent/volagent/agent/etcd/wire"
)

const (
	// callLimit is the time limit of one call to one member. A member without a leader answers only
	// after several seconds.
	callLimit = 4 * time.Second

	// longLimit is the time limit of a call that does much work, such as a defragmentation.
	longLimit = 10 * time.Minute
)

// Client calls the members of one cluster. Its methods are safe for concurrent use.
type Client struct {
	endpoints []string
	creds     credentials.TransportCredentials

	// User and Password log in to an etcd with authentication. They are empty for the bundled etcd.
	User, Password string

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
	token string // of the login
}

// New returns a client for the members at the given URLs. It connects when it is used.
func New(endpoints []string, config *tls.Config) *Client {
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	return &Client{endpoints: endpoints, creds: creds, conns: map[string]*grpc.ClientConn{}}
}

// Close closes all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // a connection that is closed has nothing to lose
	}
	clear(c.conns)
}

// any makes a call to one member after the other, until a member answers it. A learner does not
// answer most calls.
func (c *Client) any(ctx context.Context, call func(ctx context.Context, conn *grpc.ClientConn) error) error {
	var failed error
	for _, endpoint := range c.endpoints {
		err := c.at(ctx, endpoint, callLimit, call)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("etcd does not answer: %w", ctx.Err())
		case !elsewhere(err):
			return words(err)
		case failed == nil || !isLearner(err):
			failed = err
		}
	}

	return c.unreachable(failed)
}

// at makes a call to one member.
func (c *Client) at(ctx context.Context, endpoint string, limit time.Duration, call func(ctx context.Context, conn *grpc.ClientConn) error) error {
	conn, err := c.connect(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if c.User != "" {
		if ctx, err = c.login(ctx, conn); err != nil {
			return err
		}
	}

	return call(ctx, conn)
}

// connect returns the connection to a member. All calls to the member share it.
func (c *Client) connect(endpoint string) (*grpc.ClientConn, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil, wire.Errorf(api.CodeInvalid, "", "endpoint %q is not a URL such as https://10.0.0.1:2379", endpoint)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[endpoint]; conn != nil {
		return conn, nil
	}

	creds := c.creds
	if u.Scheme == "http" {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", endpoint, err)
	}
	c.conns[endpoint] = conn
	return conn, nil
}

// login adds the token of the user to a call. It logs in with the first call.
func (c *Client) login(ctx context.Context, conn *grpc.ClientConn) (context.Context, error) {
	c.mu.Lock()
	token := c.token
	c.mu.Unlock()

	if token == "" {
		r, err := pb.NewAuthClient(conn).Authenticate(ctx, &pb.AuthenticateRequest{Name: c.User, Password: c.Password})
		if err != nil && rpctypes.ErrorDesc(err) != rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthNotEnabled) {
			return nil, err
		}
		token = r.GetToken()
		c.mu.Lock()
		c.token = token
		c.mu.Unlock()
	}
	if token == "" {
		return ctx, nil
	}

	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token), nil
}

// elsewhere reports whether another member may answer a call that has failed.
func elsewhere(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded || isLearner(err)
}

func isLearner(err error) bool {
	return rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner)
}

// unreachable returns the error for a call that no member has answered.
func (c *Client) unreachable(err error) error {
	desc := rpctypes.ErrorDesc(err)
	if desc == rpctypes.ErrorDesc(rpctypes.ErrGRPCUnhealthy) {
		return fmt.Errorf("etcd refuses the change: %w", errUnhealthy)
	}

	why := describe(err)
	return wire.Errorf(api.CodePluginUnavailable, "see which members answer: volctl cluster status",
		"etcd does not answer, or a majority of its members is away (%s): %s", strings.Join(c.endpoints, ", "), why)
}

// errUnhealthy means that etcd refuses a change of the members, because it has not been connected to
// a majority for the last seconds.
var errUnhealthy = errors.New("not all members have been connected for the last seconds")

// IsUnhealthy reports whether a change of the members may succeed some seconds later.
func IsUnhealthy(err error) bool {
	return errors.Is(err, errUnhealthy)
}

// words turns an error of etcd into one for a person.
func words(err error) error {
	desc := rpctypes.ErrorDesc(err)
	is := func(e error) bool { return desc == rpctypes.ErrorDesc(e) }
	switch {
	case is(rpctypes.ErrGRPCNoSpace):
		return wire.Errorf(api.CodeRefused, "volctl cluster compact", "etcd is full: it has reached its quota, and accepts no changes until space is freed")
	case is(rpctypes.ErrGRPCTooManyLearners):
		return wire.Errorf(api.CodeRefused, "start the members that wait, or remove one: volctl cluster status", "two members wait to become voters already, and do not run")
	case is(rpctypes.ErrGRPCMemberNotEnoughStarted):
		return wire.Errorf(api.CodeRefused, "volctl cluster status", "too few members run; etcd would lose its quorum")
	case is(rpctypes.ErrGRPCPermissionDenied), is(rpctypes.ErrGRPCAuthFailed), status.Code(err) == codes.Unauthenticated:
		return wire.Errorf(api.CodePermission, "check user and password in the cluster section of the configuration", "etcd refuses access: %s", desc)
	default:
		return fmt.Errorf("etcd refuses: %s", desc)
	}
}

// describe shortens the error of a call that no member answered.
func describe(err error) string {
	switch {
	case err == nil:
		return "no endpoint is known"
	case status.Code(err) == codes.DeadlineExceeded:
		return "no answer in time"
	default:
		return reason.Of(rpctypes.ErrorDesc(err))
	}
}

// KV is one key with its value. Mod is the revision of its last change, and 0 if it does not exist.
type KV struct {
	Key   string
	Value []byte
	Mod   int64
}

// Get reads a key.
func (c *Client) Get(ctx context.Context, key string) (KV, error) {
	kvs, err := c.read(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(kvs) == 0 {
		return KV{Key: key}, err
	}
	return kvs[0], nil
}

// List reads all keys that begin with a prefix, which ends with "/".
func (c *Client) List(ctx context.Context, prefix string) ([]KV, error) {
	end := prefix[:len(prefix)-1] + "0" // "0" follows "/" in ASCII
	return c.read(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(end)})
}

func (c *Client) read(ctx context.Context, req *pb.RangeRequest) ([]KV, error) {
	var kvs []KV
	err := c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		r, err := pb.NewKVClient(conn).Range(ctx, req)
		if err != nil {
			return err
		}
		kvs = nil
		for _, kv := range r.Kvs {
			kvs = append(kvs, KV{string(kv.Key), kv.Value, kv.ModRevision})
		}
		return nil
	})
	return kvs, err
}

// Put sets a key.
func (c *Client) Put(ctx context.Context, key string, value []byte) error {
	return c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte(key), Value: value})
		return err
	})
}

// Delete deletes a key.
func (c *Client) Delete(ctx context.Context, key string) error {
	return c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte(key)})
		return err
	})
}

// PutIf sets a key to a value if it has not changed since it was read. It reports whether the key has
// the value now.
func (c *Client) PutIf(ctx context.Context, old KV, value []byte) (bool, error) {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Result: pb.Compare_EQUAL, Target: pb.Compare_MOD, Key: []byte(old.Key),
			TargetUnion: &pb.Compare_ModRevision{ModRevision: old.Mod},
		}},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(old.Key), Value: value}}}},
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(old.Key)}}}},
	}

	done := false
	err := c.any(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		r, err := pb.NewKVClient(conn).Txn(ctx, req)
		if err != nil {
			return err
		}
		done = r.Succeeded
		if !done {
			// An earlier attempt may have been executed although its answer was lost.
			kvs := r.Responses[0].GetResponseRange().Kvs
			done = len(kvs) == 1 && slices.Equal(kvs[0].Value, value)
		}
		return nil
	})
	return done, err
}

// Snapshot writes a snapshot of etcd's data, followed by its SHA-256 hash. It returns etcd's version.
func (c *Client) Snapshot(ctx context.Context, to io.Writer) (size int64, version string, err error) {
	for _, endpoint := range c.endpoints {
		err = c.at(ctx, endpoint, longLimit, func(ctx context.Context, conn *grpc.ClientConn) error {
			stream, err := pb.NewMaintenanceClient(conn).Snapshot(ctx, &pb.SnapshotRequest{})
			if err != nil {
				return err
			}
			size, version, err = copyBlobs(stream, to)
			return err
		})
		if err == nil || size > 0 || !elsewhere(err) {
			break // after the first byte, another member cannot continue
		}
	}

	switch {
	case err == nil:
		return size, version, nil
	case elsewhere(err):
		return 0, "", c.unreachable(err)
	default:
		return 0, "", words(err)
	}
}

func copyBlobs(stream grpc.ServerStreamingClient[pb.SnapshotResponse], to io.Writer) (size int64, version string, err error) {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return size, version, nil
		}
		if err != nil {
			return size, "", err
		}

		if r.Version != "" {
			version = r.Version
		}
		n, err := to.Write(r.Blob)
		size += int64(n)
		if err != nil {
			return size, "", fmt.Errorf("cannot write the snapshot: %w", err)
		}
	}
}
