package supervisor

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/agent/supervisor/transient"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// State is the state of one part of a plugin.
type State = part.State

// The states.
const (
	Stopped    = part.Stopped
	Starting   = part.Starting
	Ready      = part.Ready
	Unhealthy  = part.Unhealthy
	BackingOff = part.BackingOff
	Failed     = part.Failed
)

// Only limits a request to some parts of a plugin.
type Only = part.Only

// Registration describes the definition that Register received, and the outcome.
type Registration = definitions.Registration

// Options configures a Supervisor.
type Options struct {
	PluginDir  string // holds *.yaml; it need not exist
	DataDir    string // plugins' states and logs, mount roots
	RuntimeDir string // plugins' sockets
	NodeID     string // ${NODE_ID}

	// BuiltinArgv is the command line of the bundled driver. The supervisor appends --endpoint,
	// --node-id and --state-dir. Empty: there is no bundled driver.
	BuiltinArgv []string

	// Systemd is the connection to the host's service manager. Nil: there is none.
	Systemd *systemd.Bus
	// ServiceArgv is the command line that runs Launch. If it is set, commands run as services of
	// systemd. Otherwise the agent forks them.
	ServiceArgv []string

	Store    Store
	Registry definitions.Registry  // nil: plugins cannot be registered at run time
	Secrets  runner.SecretResolver // nil: plugin files may not refer to secrets
	Logger   hclog.Logger          // nil: no log

	// InUse names the volumes that are staged through a plugin, or are about to be. The supervisor
	// asks before it stops a part of the plugin. InUse must not call the Supervisor. Nil: no volume
	// is ever in use.
	InUse func(pluginID string) []string
	// HasVolumes reports whether the agent has volumes of a plugin. It must not call the
	// Supervisor. Nil: the agent has none.
	HasVolumes func(pluginID string) bool
	// FUSE returns how many claims have a FUSE mount through a plugin. Refusals state this number.
	// It must not call the Supervisor. Nil: the number is unknown.
	FUSE func(pluginID string) int
	// Known returns the secrets that a plugin may have received from this agent or an earlier one.
	// The supervisor asks once for each plugin, before it shows any of the plugin's log. Known must
	// not call the Supervisor. Nil: there are none.
	Known func(pluginID string) []call.Secrets
	// OnChange is called after each change of a part's state, from that part's goroutine. It must
	// not block. It may be nil.
	OnChange func(Change)

	// OnWarning is called, like OnChange, with a warning about the namespaces in which a part runs
	// or about its driver's name. Each warning is passed once. The argument part is as in Change.
	// It may be nil.
	OnWarning func(pluginID, part, warning string)
	// Host tests whether plugins share its mounts. Nil: the supervisor does not test it.
	Host *mount.Host

	// Client is the template of the plugins' clients. Their timeouts, limit and scrubber come from
	// the plugin files.
	Client csiclient.Options
	// Observe returns the observer of the calls of a new client to a plugin. Nil: calls are not
	// observed.
	Observe func(pluginID string) csiclient.Observer
	// Backoff sets the pauses before restarts. Its zero value is the default.
	Backoff Backoff
	// StopGrace is the time between SIGTERM and SIGKILL. 0 means 10 s.
	StopGrace time.Duration
}

// Change describes a part of a plugin after a change.
type Change struct {
	Plugin string
	Part   string            // "node", "controller a"; empty if the plugin has one part
	View   volume.PluginView // of this part alone
}

// Store keeps the plugins' records across restarts of the agent.
type Store interface {
	// LoadPlugins returns all records.
	LoadPlugins() ([]volume.PluginRecord, error)
	// SavePlugin stores a record durably before it returns.
	SavePlugin(ctx context.Context, rec volume.PluginRecord) error
}

// env holds the options and counters that all parts of the supervisor share.
type env struct {
	opts     Options
	log      hclog.Logger
	dirs     part.Dirs
	services *transient.Services
	boot     string // identifies this boot of the host; set by the first Load

	incarnations atomic.Uint64
	ends         atomic.Pointer[hostEnd] // set once the host shuts down
	doors        sync.Mutex              // one part at a time decides whether it may end
}

// hostEnd describes how plugins end because the host shuts down.
type hostEnd struct {
	ctx  context.Context
	keep func(pluginID string) bool
}

func newEnv(opts Options) *env {
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}

	if opts.StopGrace <= 0 {
		opts.StopGrace = 10 * time.Second
	}

	opts.Backoff = opts.Backoff.withDefaults()
	log := opts.Logger.Named("supervisor")
	return &env{
		opts: opts, log: log, dirs: part.Dirs{Data: opts.DataDir, Runtime: opts.RuntimeDir},
		services: transient.New(opts.Systemd, opts.ServiceArgv, log),
	}
}

// inUse names the volumes that prevent a stop of a plugin.
func (e *env) inUse(id string) []string {
	if e.opts.InUse == nil {
		return nil
	}
	return e.opts.InUse(id)
}

// breaks says how the end of a plugin's process affects mounts.
func (e *env) breaks(id string) string {
	if e.opts.FUSE == nil {
		return "mounts that live in its process (FUSE) break with its end"
	}
	switch n := e.opts.FUSE(id); n {
	case 0:
		return "no claim has a FUSE mount that could break with its end"
	case 1:
		return "1 claim has a FUSE mount, which breaks if its process serves it"
	default:
		return fmt.Sprintf("%d claims have FUSE mounts, which break if its process serves them", n)
	}
}
