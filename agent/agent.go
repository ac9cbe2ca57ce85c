// Package agent configures volagent, and starts and stops its parts. It reads the configuration,
// opens the state database, and gives each package below it the implementations of that package's
// interfaces. Only the binary and the main functions of tests import it.
//
//	command.go  the commands of volagent
//	config.go   the configuration
//	agent.go    the life of an agent: New, Open, Run, Close
//	state.go    opens the state, and decides who this agent is
//	connect.go  connects the packages
//	serve.go    runs the background tasks, and stops in order
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/owndir"
	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/process"
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
	c       Config
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
	c, err := loadConfig(fl)
	return &Agent{c: c, flags: fl, seams: seams, log: c.logger(stderr), started: time.Now().UTC(), down: make(chan struct{})}, err
}

// Open opens the state and the sockets. Nothing works on a volume or a plugin before Run.
func (a *Agent) Open(ctx context.Context) (err error) {
	ctx = context.WithoutCancel(ctx) // a signal ends the agent after a complete start, not within it
	process.LoadingMemory()
	for _, step := range []func(context.Context) error{a.openState, a.recall, a.connectPlugins, a.connectVolumes, a.connectServers, a.openSockets} {
		if err := step(ctx); err != nil {
			return err
		}
	}

	return nil
}

// Close ends what Open opened, after Run or a failed Open. Plugins and mounts stay.
func (a *Agent) Close() (err error) {
	if a.owners != nil {
		err = a.owners.Close()
	}
	if a.systemd != nil {
		a.systemd.Close()
	}
	if a.events != nil {
		process.Within(eventsWithin, a.events.Close)
	}
	if a.db.DB != nil {
		err = errors.Join(err, a.db.Close())
	}

	return err
}

// run runs an agent until ctx ends. It starts the configured plugins and services, and continues
// with every volume from its recorded state. When it ends, plugins and mounts stay.
func run(ctx context.Context, fl *pflag.FlagSet, stderr io.Writer, seams Seams) error {
	a, err := New(fl, stderr, seams)
	if err == nil {
		err = makeRuntimeDir(a.c.RuntimeDir)
	}
	failed := process.OpenStartError(a.c.Socket)
	defer failed.Close()

	if err == nil {
		err = a.Open(ctx)
	}
	if err != nil {
		failed.Write(err, a.log)
		return errors.Join(err, a.Close())
	}

	return errors.Join(a.Run(ctx), a.Close())
}

func makeRuntimeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the runtime dir: %w", err)
	}
	return nil
}
