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
	"github.com/volagent/volagent/volmgr/plugin"
)

// State is the state of one part of a plugin.
type State = part.State

// The states of a part. Package part describes them.
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

// Registration describes a definition that was passed to Register, and the outcome.
type Registration = definitions.Registration

// Options configures a Supervisor.
type Options struct {
	PluginDir  string // directory of the plugin files, *.yaml; it need not exist
	DataDir    string // base directory of the plugins' states, logs and mount roots
	RuntimeDir string // base directory of the plugins' sockets
	NodeID     string // value of the variable ${NODE_ID} in plugin files

	// BuiltinArgv is the command line of the bundled driver. The supervisor appends --endpoint,
	// --node-id and --state-dir. If BuiltinArgv is empty, there is no bundled driver.
	BuiltinArgv []string

	// Systemd is the connection to the host's service manager, or nil if the host has none.
	Systemd *systemd.Bus
	// ServiceArgv is the command line that runs Launch. If it is set, commands run as services of
	// systemd. Otherwise the agent forks them.
	ServiceArgv []string

	Store    Store
	Registry definitions.Registry  // if nil, plugins cannot be registered at run time
	Secrets  runner.SecretResolver // if nil, plugin files may not refer to secrets
	Logger   hclog.Logger          // if nil, nothing is logged

	// InUse returns the ids of the volumes that are staged through a plugin, or are about to be.
	// The supervisor calls it before it stops a part of the plugin. InUse must not call the
	// Supervisor. If InUse is nil, no volume counts as in use.
	InUse func(pluginID string) []string
	// HasVolumes reports whether the agent has volumes of a plugin. It must not call the
	// Supervisor. If HasVolumes is nil, the agent has none.
	HasVolumes func(pluginID string) bool
	// FUSE returns how many claims have a FUSE mount through a plugin, for error messages. It must
	// not call the Supervisor. If FUSE is nil, the number is unknown.
	FUSE func(pluginID string) int
	// Known returns the secrets that a plugin may have received from this agent or an earlier one.
	// The supervisor calls it once for each plugin, before it shows any line of the plugin's log.
	// Known must not call the Supervisor. If Known is nil, there are no such secrets.
	Known func(pluginID string) []call.Secrets
	// OnChange is called after each change of a part's state, from that part's goroutine. It must
	// not block. It may be nil.
	OnChange func(Change)

	// OnWarning is called like OnChange, with a warning about a part's namespaces or about its
	// driver's name. Each warning is reported once. The argument part has the same meaning as in
	// Change. OnWarning may be nil.
	OnWarning func(pluginID, part, warning string)
	// Host tests whether plugins share its mounts. If Host is nil, the supervisor does not test
	// this.
	Host *mount.Host

	// Client is the template for the options of the plugins' clients. The plugin files determine
	// the timeouts, the limit and the scrubber.
	Client csiclient.Options
	// Observe returns the observer for the calls of a new client to a plugin. If Observe is nil,
	// calls are not observed.
	Observe func(pluginID string) csiclient.Observer
	// Backoff sets the pauses before restarts. Its zero value is the default.
	Backoff Backoff
	// StopGrace is the time between SIGTERM and SIGKILL. 0 means 10 s.
	StopGrace time.Duration
}

// Change describes a part of a plugin after a change of its state.
type Change struct {
	Plugin string
	Part   string      // "node", "controller a"; empty if the plugin has one part
	View   plugin.View // the view of this part alone
}

// Store keeps the plugins' records across restarts of the agent.
type Store interface {
	// LoadPlugins returns all records.
	LoadPlugins() ([]plugin.Record, error)
	// SavePlugin stores a record durably before it returns.
	SavePlugin(ctx context.Context, rec plugin.Record) error
}

// env holds the options and counters that all parts of the supervisor share.
type env struct {
	opts     Options
	log      hclog.Logger
	dirs     part.Dirs
	services *transient.Services
	boot     string // id of this boot of the host; the first Load sets it

	incarnations atomic.Uint64
	ends         atomic.Pointer[hostEnd] // set when the host begins to shut down
	doors        sync.Mutex              // only one part at a time decides whether it may end
}

// hostEnd describes which plugins End stops when the host shuts down, and for how long.
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

// inUse returns the ids of the volumes that prevent a stop of a plugin.
func (e *env) inUse(id string) []string {
	if e.opts.InUse == nil {
		return nil
	}
	return e.opts.InUse(id)
}

// breaks describes the effect on mounts when a plugin's process ends.
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
