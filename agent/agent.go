// Package agent configures volagent, and starts and stops its parts. It reads the configuration,
// opens the state database, and gives each package below it the implementations of that package's
// interfaces. Only the binary and the main functions of tests import it.
//
//	command.go  the commands of volagent
//	life.go     the life of an agent: Open, Run, Close
//	serve.go    the background tasks, and the stop in order
//	connect.go  the connections between packages
//	state.go    the state database, and the identity of this agent
//	agent.go    the parts of an agent, and New
package agent

import (
	"io"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/owndir"
	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/status"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/agent/volumefiles"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the names of the hidden commands.
const (
	localDriverCommand = "local-driver"
	launchCommand      = "launch"
	lendCommand        = "lend"
)

// Seams are two points at which a test can observe or change the agent's behaviour. The binary sets
// neither.
type Seams struct {
	// Tap is called around each commit of the state database.
	Tap func(statedb.Point)
	// Interceptor wraps each call to a plugin.
	Interceptor grpc.UnaryClientInterceptor
}

// Agent is the agent of one host.
type Agent struct {
	c       config.Config
	flags   *pflag.FlagSet
	seams   Seams
	log     hclog.Logger
	started time.Time
	down    chan struct{} // closed when the host begins to shut down

	// The state, which Open reads first.
	db           records.Store
	events       *event.Log
	secrets      secret.Resolver
	host         *mount.Host
	was, node    statedb.Node // the node as the last agent stored it, and now
	halt         string       // why no call is sent to any plugin; empty in normal operation
	otherDataDir string       // the data dir of another agent, if that is the reason for halt

	// The plugins.
	systemd *systemd.Bus
	metrics *metrics.Metrics
	plugins plugins.Set
	changes topic[supervisor.Change]
	tests   *plugintest.Service

	// The volumes and claims.
	owners       *owner.Watcher
	dirs         owndir.Dirs
	queue        *reconcile.Queue
	volumeEvents topic[[]volume.Event]
	volumes      *provision.Service
	files        *volumefiles.Files
	claims       *claim.Service
	reaper       *claim.Reaper

	// The sockets and their servers.
	status        *status.Service
	server        *apiserver.Server
	group         int // may use the API socket
	socket        net.Listener
	runtimes      *dockervol.Service
	runtimeServer *dockervol.Server
	runtimeSocket net.Listener    // nil if docker_socket is not configured
	scraped       *metrics.Server // nil without a metrics_address
}

// New reads the configuration. It starts nothing. With an error, the agent can only tell its
// configuration, as far as it is valid.
func New(fl *pflag.FlagSet, stderr io.Writer, seams Seams) (*Agent, error) {
	c, err := config.Load(fl)
	return &Agent{c: c, flags: fl, seams: seams, log: c.Logger(stderr), started: time.Now().UTC(), down: make(chan struct{})}, err
}

// topic passes news from a package to others that are built later and depend on it. Subscribers are
// added while the agent opens, before the first news; topic therefore needs no lock.
type topic[T any] struct{ subscribers []func(T) }

func (t *topic[T]) subscribe(fn func(T)) { t.subscribers = append(t.subscribers, fn) }

// publish calls all subscribers in the order of their subscription.
func (t *topic[T]) publish(news T) {
	for _, fn := range t.subscribers {
		fn(news)
	}
}
