// Package fence takes over the volumes of hosts that are gone. Another host that waits for such a volume
// says so in the cluster. The host that cleans up first then gathers the proof that the lost host cannot
// write, and drops its holds. Package volmgr/shared decides each transaction.
//
//	fence.go    Fencer, its dependencies, and which hosts a pass fences
//	attempt.go  one try to fence one host
//	hook.go     the proof by a hook
//	passon.go   the hosts that ask their hooks in place of the elected one
//	detach.go   the proof by a detach, for one volume
//	proven.go   the holds of a host that is proven off
//	store.go    the reads, and how decisions are executed
//
// Each try is a job of package agent/hold/clean. A try that stops in the middle is continued by the next
// pass of any host that cleans up.
package fence

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Hooks switches hosts off.
type Hooks interface {
	// Names returns the names of the hooks of this host, in the order in which Off asks them.
	Names() []string

	// Off switches a host off. It returns the name of the hook that then reported the host as off, or an
	// error that describes the answer of each hook.
	Off(ctx context.Context, host string, m shared.Machine) (hook string, err error)
}

// Options are the dependencies of a Fencer.
type Options struct {
	Store shared.Store
	Node  string

	// Detacher returns the client that detaches any host from a volume, with the secrets and the deadline of
	// its calls. Another host may make the calls. It fails if no live host can.
	Detacher func(context.Context, volume.Volume) (call.Caller, call.Secrets, time.Duration, error)

	// Published returns the nodes to which the driver says that a volume is attached. It is not known if
	// the driver does not list them, or has no controller on this host.
	Published func(ctx context.Context, v volume.Volume) (nodes []string, known bool, err error)

	Hooks Hooks

	// Wake asks for a pass now, after holds were dropped.
	Wake func()

	Events func(...volume.Event)
	Log    hclog.Logger

	// Retry is the pause before another try, and HookRetry the one after a hook has failed. 0 means the
	// default.
	Retry, HookRetry time.Duration
}

// These are the defaults of the pauses in Options.
const (
	defaultRetry     = 5 * time.Second
	defaultHookRetry = time.Minute
)

// Fencer fences hosts that are gone. Its methods are safe for concurrent use.
type Fencer struct {
	Options

	mu    sync.Mutex
	alive map[string]bool            // the hosts that were alive at the last pass
	gone  map[string]time.Time       // when this host has first seen that a host is not alive, by its monotonic clock
	next  map[string]time.Time       // when the next try to fence a host is due
	tried map[string]map[string]bool // the volumes of a host that the last try has looked at
	hook  map[string]hookFailure     // the last failure of the hooks to switch a host off
	turns map[string]turn            // which host asks its hooks to switch a lost host off

	takeovers, failures int
}

// hookFailure is a failure of the hooks, and when they may be asked again.
type hookFailure struct {
	err   error
	again time.Time
}

// New returns a Fencer. It starts nothing.
func New(o Options) *Fencer {
	if o.Retry == 0 {
		o.Retry = defaultRetry
	}
	if o.HookRetry == 0 {
		o.HookRetry = defaultHookRetry
	}
	return &Fencer{
		Options: o, alive: map[string]bool{}, gone: map[string]time.Time{}, next: map[string]time.Time{},
		tried: map[string]map[string]bool{}, hook: map[string]hookFailure{}, turns: map[string]turn{},
	}
}

// want is a volume of a lost host that another host waits for.
type want struct {
	id  string
	key shared.Entry[shared.Wanted]
}

// Pass starts a try for each lost host whose volumes are wanted, and for each fencing that its host has
// abandoned. The function start runs a job in the background, unless one for that host runs. The result
// due is the time until the next try, or 0.
func (f *Fencer) Pass(ctx context.Context, who shared.Asker, live map[string]shared.Live, start func(host string, job func())) (due time.Duration, err error) {
	f.noteAlive(live)
	lost, err := f.wanted(ctx, live)
	if err != nil {
		return 0, err
	}
	if err := f.addAbandoned(ctx, live, lost); err != nil {
		return 0, err
	}

	f.endTurns(lost)
	return f.tryAll(ctx, lost, start, func(host string, wants []want) *attempt {
		return &attempt{who: who, host: host, wants: wants, live: live, elected: true}
	}), nil
}

// PassFor is like Pass, for lost hosts that the elected host has passed on to this host. While it has such a host,
// it tries again all the time, because it does not watch which volumes are wanted.
func (f *Fencer) PassFor(ctx context.Context, who shared.Asker, live map[string]shared.Live, lost map[string]bool, start func(host string, job func())) (due time.Duration, err error) {
	f.noteAlive(live)
	all, err := f.wanted(ctx, live)
	if err != nil {
		return 0, err
	}
	maps.DeleteFunc(all, func(host string, _ []want) bool { return !lost[host] })
	f.tryAll(ctx, all, start, func(host string, wants []want) *attempt {
		return &attempt{who: who, host: host, wants: wants, live: live}
	})
	return f.Retry, nil
}

// tryAll starts a try for each lost host for which it is due. It returns the time until the next try, or 0.
func (f *Fencer) tryAll(ctx context.Context, lost map[string][]want, start func(string, func()), by func(string, []want) *attempt) (due time.Duration) {
	for host, wants := range lost {
		wait := f.untilNext(host, wants)
		begins := wait == 0
		if begins {
			wait = f.Retry // the job decides when the next try is due
		}
		if due == 0 || wait < due {
			due = wait
		}
		if !begins {
			continue
		}
		start(host, func() {
			f.setTried(host, wants)
			f.setNext(host, f.attempt(ctx, by(host, wants)))
		})
	}
	return due
}

// noteAlive records which hosts have gone since the last pass. The lease of a host ends while this host
// watches, so the time of the pass is close to that of the end.
func (f *Fencer) noteAlive(live map[string]shared.Live) {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	for host := range f.alive {
		if _, ok := live[host]; !ok {
			f.gone[host] = now
		}
	}
	clear(f.alive)
	for host := range live {
		f.alive[host] = true
		delete(f.gone, host)
		delete(f.next, host)
		delete(f.tried, host)
		delete(f.hook, host)
		delete(f.turns, host)
	}
}

// absent returns how long this host has known that a host is not alive.
func (f *Fencer) absent(host string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()

	since, ok := f.gone[host]
	if !ok {
		since = time.Now()
		f.gone[host] = since
	}
	return time.Since(since)
}

// untilNext returns the time until the next try to fence a host, or 0. A volume that the last try has not
// looked at does not wait.
func (f *Fencer) untilNext(host string, wants []want) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, w := range wants {
		if !f.tried[host][w.id] {
			return 0
		}
	}
	return max(0, time.Until(f.next[host]))
}

// setTried records the volumes of a host that a try looks at.
func (f *Fencer) setTried(host string, wants []want) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.tried[host] = map[string]bool{}
	for _, w := range wants {
		f.tried[host][w.id] = true
	}
}

// setNext records when the next try to fence a host is due. Without a wait, the next want begins one.
func (f *Fencer) setNext(host string, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()

	delete(f.next, host)
	if wait > 0 {
		f.next[host] = time.Now().Add(wait)
	}
}

// wanted returns the volumes that hosts wait for, by the lost host that prevents their use.
func (f *Fencer) wanted(ctx context.Context, live map[string]shared.Live) (map[string][]want, error) {
	lost, seen := map[string][]want{}, map[string]bool{}
	err := shared.Each(ctx, f.Store, shared.AllWanted(), func(kv shared.KV) error {
		id, _, ok := shared.WantedIDs(kv.Key)
		key, err := shared.Decode[shared.Wanted](kv)
		if err != nil || !ok || seen[id] {
			return err
		}

		seen[id] = true
		hosts, err := f.preventers(ctx, id)
		for _, host := range hosts {
			if _, alive := live[host]; !alive {
				lost[host] = append(lost[host], want{id: id, key: key})
			}
		}
		return err
	})
	return lost, err
}

// addAbandoned adds the hosts whose fencing no living agent continues. Such a host cannot register before
// the fencing has ended.
func (f *Fencer) addAbandoned(ctx context.Context, live map[string]shared.Live, lost map[string][]want) error {
	return shared.Each(ctx, f.Store, shared.Nodes(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.Node](kv)
		host, _ := shared.LastID(kv.Key)
		is := e.Value.Fencing
		if err != nil || e.Value.State != shared.NodeFencing || is == nil || is.Proven == shared.Replaced {
			return err
		}

		writer, alive := live[is.By]
		working := alive && writer.Incarnation == is.ByIncarnation && is.By != f.Node
		if _, known := lost[host]; !known && !working {
			lost[host] = nil
		}
		return nil
	})
}

// Figures returns the number of holds that this host has dropped, and of tries that have failed.
func (f *Fencer) Figures() (takeovers, failures int) {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.takeovers, f.failures
}

// count adds to the figures.
func (f *Fencer) count(takeovers, failures int) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.takeovers += takeovers
	f.failures += failures
}
