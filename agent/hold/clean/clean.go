// Package clean ends the unfinished controller calls and tasks of hosts that are gone. It also
// compares the attachments with the holds, and reports keys that contradict each other.
//
//	clean.go       Cleaner, its dependencies, and when it makes a pass
//	leader.go      the election of the host that cleans up first
//	pass.go        one pass over the keys
//	orphan.go      one call whose executor is gone
//	takeover.go    one call that is taken over
//	overtaken.go   the late effects of calls that this host has made
//	jobs.go        the work that waits for plugins
//	published.go   the attachments that the drivers list
//	findings.go    keys that contradict each other
//	heavy.go       the parts of a pass that read much
//
// Every host can clean up. The elected host makes a pass when it is elected, when a host comes or goes,
// and every minute. The others make one after a registration, and when the elected host asks for it
// because it cannot end a call. Only the elected host compares the attachments and fences, or the hosts that it names
// in its key. The election only saves work: each step is one transaction, or
// one announced call, and any host can continue it. Only a Fencer deletes the hold of another host, with a
// proof that the host cannot write.
package clean

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the defaults of the times in Options.
const (
	defaultEvery    = time.Minute
	defaultTTL      = 15 * time.Second
	defaultDeadline = time.Minute // of a call whose executor did not say it
)

// rarely is the factor by which a host that is not elected makes fewer passes without an event. It
// does not apply to a host that compares attachments for the elected one.
const rarely = 10

// Fencer fences hosts that are gone.
type Fencer interface {
	// Pass starts a job for each host that must be fenced, unless a job for that host runs. It returns the
	// time until the next try, or 0. Only the elected host calls it.
	Pass(ctx context.Context, who shared.Asker, live map[string]shared.Live, start func(host string, job func())) (due time.Duration, err error)

	// PassedOn returns the hosts that fence a lost host in place of the elected host, by lost host.
	PassedOn() map[string]string

	// PassFor is like Pass, for the lost hosts that the elected host has passed on to this host.
	PassFor(ctx context.Context, who shared.Asker, live map[string]shared.Live, lost map[string]bool, start func(host string, job func())) (due time.Duration, err error)
}

// Options are the dependencies of a Cleaner.
type Options struct {
	Store shared.Store
	Node  string

	// Asker returns this host for a transaction. It fails while the host is not registered.
	Asker func() (shared.Asker, error)

	// View returns the state of a plugin of this host, and Plugin its client for a call.
	View   func(pluginID string) plugin.View
	Plugin func(v volume.Volume, k call.Method) (call.Caller, error)

	// Secrets resolves all references to secrets of a volume on this host.
	Secrets func(volume.Volume) (call.Secrets, error)

	// Fencer fences hosts that are gone.
	Fencer Fencer

	// Every is the mean interval of passes without an event, and TTL the time to live of the
	// election's lease. 0 means the default.
	Every, TTL time.Duration

	Log hclog.Logger
}

// Cleaner cleans up after hosts that are gone. Its methods are safe for concurrent use.
type Cleaner struct {
	Options

	mu       sync.Mutex
	elected  bool
	findings []string
	live     int // hosts with a lease, as the last pass has found them

	// gone contains the executors whose call was seen without a live executor, and since when, by
	// the monotonic clock of this host. The key of the map is that of the call. Only pass uses it.
	gone map[string]absence

	// asked contains the calls for which the elected host has asked the others, and when. Only pass
	// uses it.
	asked map[string]time.Time

	// late contains the time after which the earlier attempts to end a call can no longer take
	// effect, by the key of the call.
	late map[string]time.Time

	// overtaken contains the hosts to which a late call of this host may have attached a volume, and
	// the time after which the call has no further effect.
	overtaken map[target]time.Time

	// entrusted contains the plugins whose attachments this host compares for the elected host. The
	// map itself does not change.
	entrusted map[string]bool

	// fences contains the lost hosts that this host fences for the elected host. The map itself does not
	// change.
	fences map[string]bool

	// passed is the last map of the hosts that fence for this elected host, as its key shows it. The map itself
	// does not change.
	passed map[string]string

	jobs jobs // named after the key of a call or of a fencing, comparing or examining

	// examined is the time of the last part of a pass that reads much. Only pass uses it.
	examined time.Time

	again chan struct{} // asks for a pass now
}

// These are the names of jobs: the comparison of the attachments with the holds, and the search for keys
// that contradict each other.
const (
	comparing = "compare"
	examining = "examine"
)

// fencingJob returns the name of the job that fences a host.
func fencingJob(host string) string { return "fence/" + host }

// absence is the time since which the executor of a call is not alive.
type absence struct {
	executor string
	mod      int64 // revision of the call
	since    time.Time
}

// New returns a Cleaner that does nothing until Run starts.
func New(o Options) *Cleaner {
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	return &Cleaner{
		Options: o, gone: map[string]absence{}, late: map[string]time.Time{}, asked: map[string]time.Time{},
		overtaken: map[target]time.Time{}, jobs: jobs{running: map[string]bool{}}, again: make(chan struct{}, 1),
	}
}

// Run makes passes until ctx ends.
func (c *Cleaner) Run(ctx context.Context) {
	go candidate{c}.campaign(ctx)
	defer c.jobs.all.Wait()
	for ctx.Err() == nil {
		next := c.Every/2 + rand.N(c.Every)
		if !c.Elected() && len(candidate{c}.plugins()) == 0 {
			next *= rarely
		}
		if due, err := c.pass(ctx); err == nil && due > 0 {
			next = min(next, due)
		}

		select {
		case <-ctx.Done():
		case <-c.again:
		case <-time.After(next):
		}
	}
}

// Findings describes keys of the cluster that contradict each other, or need a person, as the last
// pass of this host has found them. Only the elected host looks for them.
func (c *Cleaner) Findings() []string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.findings
}

// Live returns the number of live hosts. Only the elected host knows it, because only that host makes
// a pass whenever a host comes or goes.
func (c *Cleaner) Live() (hosts int, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.elected {
		return 0, false
	}
	return c.live, true
}

// Elected reports whether this host cleans up first.
func (c *Cleaner) Elected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.elected
}

// Wake asks for a pass now.
func (c *Cleaner) Wake() {
	select {
	case c.again <- struct{}{}:
	default: // the last request has not been seen yet
	}
}

// deadline returns the time for which a call may still have an effect after its executor has ended.
func deadline(one shared.Call) time.Duration {
	if one.Deadline > 0 {
		return one.Deadline
	}
	return defaultDeadline
}
