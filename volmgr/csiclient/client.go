// Package csiclient makes the CSI calls to plugins. No other package calls plugins. The package
// translates between the domain's types and the CSI spec's types, and converts gRPC status codes
// into domain errors.
//
// A Client belongs to one instance of a plugin. A restarted plugin gets a new Client, because the
// old Client might still wait in its connection backoff or receive a late answer.
package csiclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// The default values of the Options.
const (
	DefaultNodeTimeout       = 2 * time.Minute
	DefaultControllerTimeout = time.Minute
	DefaultProbeTimeout      = 5 * time.Second
	DefaultMaxInFlight       = 32
)

// reconnectMax is the longest pause between two attempts to connect. gRPC's default pause grows to
// two minutes, which is far longer than the restart of a plugin.
const reconnectMax = time.Second

// window is the size in bytes of the gRPC flow-control window, for a connection and for one call.
// CSI answers are small. Without a fixed window, gRPC would send a ping with each call to measure
// the connection, which is useless on a local socket.
const window = 1 << 20

// The values of Options.Services.
const (
	AllServices    = ""
	NodeOnly       = "node"
	ControllerOnly = "controller"
)

// Options configure a Client. The zero value is usable.
type Options struct {
	// These fields are the time limits of one call. The limit includes the time that the call waits
	// because of MaxInFlight. An earlier deadline of the context takes precedence. Zero means the
	// default.
	NodeTimeout       time.Duration
	ControllerTimeout time.Duration
	ProbeTimeout      time.Duration

	// MaxInFlight limits how many calls run at the same time. 0 means the default. Probe and Info
	// do not count, because they must also reach a plugin whose other calls hang.
	MaxInFlight int

	// Services limits the client to one service of the plugin (NodeOnly or ControllerOnly). The
	// client then behaves as if the plugin did not have the other service.
	Services string

	// Interceptors see every call. The first interceptor is the outermost.
	Interceptors []grpc.UnaryClientInterceptor

	// Observer sees every call that the client sends, including Probe. Nil means no observer.
	Observer Observer

	// Exhausted is called when ControllerPublishVolume has failed with RESOURCE_EXHAUSTED. In that
	// case, the node's limits may differ from those that NodeGetInfo reported earlier. The function
	// must not block. Nil means that no function is called.
	Exhausted func()

	// Scrubber hides secrets in the plugin's messages. Nil means a new Scrubber.
	Scrubber *Scrubber
}

// Observer counts calls. The argument method is the short name of a call ("NodeStageVolume"), and
// code is a gRPC code ("OK"). The client runs the methods during each call, so they must return
// quickly.
type Observer interface {
	Began(method string)
	Ended(method, code string, took time.Duration)
}

func (o Options) withDefaults() Options {
	if o.NodeTimeout <= 0 {
		o.NodeTimeout = DefaultNodeTimeout
	}
	if o.ControllerTimeout <= 0 {
		o.ControllerTimeout = DefaultControllerTimeout
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = DefaultProbeTimeout
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.Exhausted == nil {
		o.Exhausted = func() {}
	}
	if o.Scrubber == nil {
		o.Scrubber = &Scrubber{}
	}
	return o
}

// timeout returns the time limit of one call.
func (o Options) timeout(m call.Method) time.Duration {
	if m.Service() == call.Controller {
		return o.ControllerTimeout
	}
	return o.NodeTimeout
}

// Client is a connection to one instance of a plugin. It is safe for concurrent use.
type Client struct {
	opts   Options
	conn   *grpc.ClientConn
	slots  chan struct{}
	closed atomic.Bool
	known  atomic.Pointer[known]

	identity   csi.IdentityClient
	controller csi.ControllerClient
	node       csi.NodeClient
	groups     csi.GroupControllerClient

	handlers call.Handlers
}

// known is the result of Info, which the client caches.
type known struct {
	info plugin.Info
	// groups is set if the plugin has the capability GROUP_CONTROLLER_SERVICE.
	groups bool
}

// Dial makes a client for the plugin at a unix socket. It returns before the connection exists. The
// first call waits for the connection.
func Dial(socketPath string, opts Options) (*Client, error) {
	opts = opts.withDefaults()
	// gRPC's unix scheme would unescape the path in the target. The dialer therefore uses
	// socketPath itself.
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socketPath)
	}
	conn, err := grpc.NewClient("passthrough:///csi",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithConnectParams(connectParams(opts)),
		grpc.WithStatsHandler(wireTap{}),
		grpc.WithChainUnaryInterceptor(opts.Interceptors...),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for socket %q: %w", socketPath, err)
	}
	c := &Client{
		opts:       opts,
		conn:       conn,
		slots:      make(chan struct{}, opts.MaxInFlight),
		identity:   csi.NewIdentityClient(conn),
		controller: csi.NewControllerClient(conn),
		node:       csi.NewNodeClient(conn),
		groups:     csi.NewGroupControllerClient(conn),
	}
	c.handlers = handlers(c)
	return c, nil
}

func connectParams(opts Options) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
		MinConnectTimeout: opts.ProbeTimeout,
	}
}

// Close closes the connection. Calls in flight fail with Unavailable, and their effect on the
// volume is unknown.
func (c *Client) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("cannot close the connection to the plugin: %w", err)
	}
	return nil
}

// WaitLost waits until the connection is lost and then returns nil. If ctx ends first, WaitLost
// returns ctx.Err(). The agent uses it for plugins whose process it cannot watch.
func (c *Client) WaitLost(ctx context.Context) error {
	for {
		state := c.conn.GetState()
		if state != connectivity.Ready {
			return nil
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// errBusy means that the client did not send a call, because too many calls were in flight.
var errBusy = errors.New("the plugin is busy")

// acquire waits until the number of calls in flight is below the limit. The caller must call
// release after its call.
func (c *Client) acquire(ctx context.Context) (release func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	default:
	}

	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w with %d calls in flight: %w", errBusy, c.opts.MaxInFlight, ctx.Err())
	}
}

// invoke sends one call within a time limit. It waits if too many calls are in flight.
func invoke[Req, Resp any](ctx context.Context, c *Client, step call.Method, secrets call.Secrets,
	method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.timeout(step))
	defer cancel()
	c.opts.Scrubber.Add(secrets)

	release, err := c.acquire(ctx)
	if err != nil {
		var none Resp
		return none, c.callError(step, err, nil)
	}
	defer release()
	return send(ctx, c, step, method, req)
}

// send sends one call. The context must have a deadline.
func send[Req, Resp any](ctx context.Context, c *Client, step call.Method,
	method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (Resp, error) {
	tap := &wire{}
	began := c.began(step)
	resp, err := method(context.WithValue(ctx, wireKey{}, tap), req)
	c.ended(step, began, err)
	if err != nil {
		var none Resp
		return none, c.callError(step, err, tap)
	}
	return resp, nil
}

// nodeCalls makes the calls to the node service.
type nodeCalls struct{ *Client }

// controllerCalls makes the calls to the controller and to the group controller.
type controllerCalls struct{ *Client }
