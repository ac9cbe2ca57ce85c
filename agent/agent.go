// Package agent configures, starts and stops volagent. It reads the configuration, opens the state
// database, and connects the packages of the agent: it implements the interfaces of each package
// with types of the other packages. Only the binary and the main functions of tests import package
// agent.
//
//	command.go  the commands of volagent
//	life.go     the functions Open, Run and Close of an agent
//	serve.go    the background tasks, and the orderly stop
//	connect.go  the connections between packages
//	member.go   the membership in a cluster
//	state.go    the state database, and the identity of this agent
//	agent.go    the type Agent and the function New
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
	"github.com/volagent/volagent/agent/classes"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/drain"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/fencehook"
	"github.com/volagent/volagent/agent/hold"
	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/agent/hold/fence"
	"github.com/volagent/volagent/agent/hold/move"
	"github.com/volagent/volagent/agent/hold/task"
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

// Seams are functions with which a test can observe or change the agent's behavior. The binary
// sets none of them.
type Seams struct {
	// Tap is called around each commit of the state database.
	Tap func(statedb.Point)
	// Interceptor wraps each call to a plugin.
	Interceptor grpc.UnaryClientInterceptor
	// Transaction is called around each transaction in the store of a cluster.
	Transaction func(cluster.Point)
	// FenceLimits are the time limits of the fence hooks. A limit that is 0 gets its default.
	FenceLimits fencehook.Limits
}

// Agent is the agent of one host.
type Agent struct {
	c       config.Config
	flags   *pflag.FlagSet
	seams   Seams
	log     hclog.Logger
	started time.Time
	down    chan struct{} // closed when the shutdown of the host begins

	// These fields hold the state, which Open reads first.
	db           records.Store
	events       *event.Log
	secrets      secret.Resolver
	host         *mount.Host
	was, node    statedb.Node // the node record of the last agent, and the current one
	halt         string       // why the agent does not call plugins; empty in normal operation
	otherDataDir string       // another agent's data dir, if that agent is the reason

	// These fields belong to plugins.
	systemd *systemd.Bus
	metrics *metrics.Metrics
	plugins plugins.Set
	changes topic[supervisor.Change]
	tests   *plugintest.Service

	// These fields belong to volumes and claims.
	owners       *owner.Watcher
	dirs         owndir.Dirs
	queue        *reconcile.Queue
	volumeEvents topic[[]volume.Event]
	volumes      *provision.Service
	files        *volumefiles.Files
	classes      *classes.Classes
	claims       *claim.Service
	reaper       *claim.Reaper
	drainer      *drain.Service

	// These fields are nil if no cluster is configured.
	clusterStore *cluster.Store
	holds        *hold.Service
	tasks        *task.Service
	cleaner      *clean.Cleaner
	fencer       *fence.Fencer
	moves        *move.Service
	box          *secret.Box

	// These fields belong to the sockets and servers.
	status        *status.Service
	server        *apiserver.Server
	group         int // the group whose members may use the API socket
	socket        net.Listener
	runtimes      *dockervol.Service
	runtimeServer *dockervol.Server
	runtimeSocket net.Listener // nil if docker_socket is not set
	sharedServer  *dockervol.Server
	sharedSocket  net.Listener    // nil without docker_socket or a cluster
	scraped       *metrics.Server // nil if metrics_address is not set
}

// New reads the configuration, but starts nothing. After an error, the agent can only print the
// valid part of its configuration.
func New(fl *pflag.FlagSet, stderr io.Writer, seams Seams) (*Agent, error) {
	c, err := config.Load(fl)
	return &Agent{c: c, flags: fl, seams: seams, log: c.Logger(stderr), started: time.Now().UTC(), down: make(chan struct{})}, err
}

// topic passes news from one package to packages that depend on it and are therefore created later.
// All subscribers are added before the first news, so topic needs no lock.
type topic[T any] struct{ subscribers []func(T) }

func (t *topic[T]) subscribe(fn func(T)) { t.subscribers = append(t.subscribers, fn) }

// publish calls all subscribers in the order in which they were added.
func (t *topic[T]) publish(news T) {
	for _, fn := range t.subscribers {
		fn(news)
	}
}
