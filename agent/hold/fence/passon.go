package fence

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// turn is the turn of one host to ask its hooks to switch a lost host off.
type turn struct {
	to    string
	since time.Time
}

// PassedOn returns the hosts that fence a lost host in place of this host, the elected one, by lost host.
func (f *Fencer) PassedOn() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()

	all := map[string]string{}
	for lost, t := range f.turns {
		if t.to != f.Node && t.to != "" {
			all[lost] = t.to
		}
	}
	return all
}

// endTurns forgets the turns about hosts that need no fencing any more.
func (f *Fencer) endTurns(lost map[string][]want) {
	f.mu.Lock()
	defer f.mu.Unlock()

	maps.DeleteFunc(f.turns, func(host string, _ turn) bool { return len(lost[host]) == 0 })
}

// passOn reports whether another host has the turn to ask its hooks. That host then fences the lost host, and this one
// does not. A turn lasts HookRetry, and as long as its host fences. A host that is gone loses its turn.
func (a *attempt) passOn(ctx context.Context, fc shared.Fence, byHook []want) bool {
	a.Fencer.mu.Lock()
	t := a.turns[a.host]
	a.Fencer.mu.Unlock()
	_, alive := a.live[t.to]
	n := fc.Node.Value
	working := n.State == shared.NodeFencing && n.Fencing != nil && n.Fencing.By == t.to && !fc.Abandoned()
	if alive && (working || time.Since(t.since) < a.HookRetry) {
		a.delay(a.Retry)
		return t.to != a.Node
	}

	withHooks, err := a.hookHosts(ctx)
	if err != nil {
		a.delay(a.Retry)
		return true // the next pass looks again
	}
	next := turn{to: shared.NextHookHost(a.Node, withHooks, t.to), since: time.Now()}
	if next.to == "" {
		next.to = a.Node // it says that no host has hooks
	}
	a.Fencer.mu.Lock()
	a.turns[a.host] = next
	a.Fencer.mu.Unlock()
	if next.to == a.Node {
		return false
	}

	a.Log.Info("another host asks its fence hooks to switch a host off, because those of this host are missing or have failed", "host", a.host, "by", next.to)
	for _, w := range byHook {
		a.tell(ctx, w, fmt.Sprintf("it is taken over later: host %q asks its fence hooks to switch host %q off", next.to, a.host))
	}
	a.delay(a.Retry)
	if a.Wake != nil {
		a.Wake() // the next pass tells the other host
	}
	return true
}

// hookHosts returns the live hosts that have fence hooks.
func (a *attempt) hookHosts(ctx context.Context) (hosts []string, err error) {
	if len(a.Hooks.Names()) > 0 {
		hosts = append(hosts, a.Node)
	}
	err = shared.Each(ctx, a.Store, shared.NodeInfos(), func(kv shared.KV) error {
		host, _ := shared.LastID(kv.Key)
		if _, alive := a.live[host]; !alive || host == a.Node || host == a.host {
			return nil
		}
		e, err := shared.Decode[shared.NodeInfo](kv)
		if err == nil && len(e.Value.Hooks) > 0 {
			hosts = append(hosts, host)
		}
		return nil // a value that cannot be read belongs to no host that can help
	})
	return hosts, err
}
