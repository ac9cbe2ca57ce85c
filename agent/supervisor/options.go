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

// These are the states of a part; see package part.
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

// Registration describes the definition that was passed to Register, and the outcome.
type Registration = definitions.Registration

// Options configures a Supervisor.
type Options struct {
	PluginDir  string // directory of the plugin files, *.yaml; it need not exist
	DataDir    string // base directory of the plugins' states, logs and mount roots
	RuntimeDir string // base directory of the plugins' sockets
	NodeID     string // the value of the variable ${NODE_ID} in plugin files

	// BuiltinArgv is the command line of the bundled driver. The supervisor appends --endpoint,
	// --node-id and --state-dir to it. If BuiltinArgv is empty, there is no bundled driver.
	BuiltinArgv []string

	// Systemd is the connection to systemd, or nil if the host has no systemd.
	Systemd *systemd.Bus
	// ServiceArgv is the command line that runs transient.Launch. If it is set, commands run as
	// services of systemd. Otherwise the agent forks them.
	ServiceArgv []string

	Store    Store
	Registry definitions.Registry  // if nil, plugins cannot be registered at run time
	Secrets  runner.SecretResolver // if nil, a plugin file must not refer to secrets
	Logger   hclog.Logger          // if nil, nothing is logged

	// InUse returns the ids of the volumes that are staged through a plugin, or are about to be
	// staged. The supervisor calls InUse before it stops a part of the plugin. InUse must not call
	// the Supervisor. If InUse is nil, no volume counts as in use.
	InUse func(pluginID string) []string
	// HasVolumes reports whether the agent has volumes of a plugin. It must not call the
	// Supervisor. If HasVolumes is nil, no plugin has volumes.
	HasVolumes func(pluginID string) bool
	// FUSE returns how many claims have a FUSE mount through a plugin. The number is used in error
	// messages. FUSE must not call the Supervisor. If FUSE is nil, the number is unknown.
	FUSE func(pluginID string) int
	// Known returns the secrets that a plugin may have received from this agent or an earlier one.
	// The supervisor calls Known once for each plugin, before it shows any line of the plugin's
	// log. Known must not call the Supervisor. If Known is nil, plugins have received no secrets.
	Known func(pluginID string) []call.Secrets
	// OnChange is called after each change of a part's state, by the goroutine of the part. It must
	// not block. OnChange may be nil.
	OnChange func(Change)

	// OnWarning is called with each warning about a part's namespaces or about the name of its
	// driver. Each warning is reported only once. The argument part means the same as Change.Part.
	// OnWarning is called by the goroutine of the part and must not block. It may be nil.
	OnWarning func(pluginID, part, warning string)
	// Host tests whether plugins share the mounts of this host. If Host is nil, the supervisor does
	// not test this.
	Host *mount.Host

	// Client contains the options that the clients of all plugins have in common. The timeouts, the
	// limit of concurrent calls and the scrubber come from the plugin files.
	Client csiclient.Options
	// Observe returns the observer for the calls of a new client to a plugin. If Observe is nil,
	// the calls are not observed.
	Observe func(pluginID string) csiclient.Observer
	// Backoff sets the pauses before restarts. The zero value means the defaults.
	Backoff Backoff
	// StopGrace is the time between SIGTERM and SIGKILL. 0 means 10 s.
	StopGrace time.Duration
}

// Change describes a part of a plugin after its state has changed.
type Change struct {
	Plugin string
	Part   string      // such as "node" or "controller a"; empty if the plugin has only one part
	View   plugin.View // the view of only this part
}

// Store stores the records of the plugins. The next agent reads them.
type Store interface {
	// LoadPlugins returns all records.
	LoadPlugins() ([]plugin.Record, error)
	// SavePlugin stores a record. When it returns nil, the record is on disk.
	SavePlugin(ctx context.Context, rec plugin.Record) error
}

// env contains the options and counters that all parts share.
type env struct {
	opts     Options
	log      hclog.Logger
	dirs     part.Dirs
	services *transient.Services
	boot     string // the id of the current boot of the host; set by the first call of Load

	incarnations atomic.Uint64
	ends         atomic.Pointer[hostEnd] // set when the host begins to shut down
	doors        sync.Mutex              // a lock under which a part decides whether it may stop
}

// hostEnd describes which plugins the method End keeps running when the host shuts down, and how
// long End may take.
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

// breaks describes which mounts break when a plugin's process ends.
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
