package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// detachesAtOnce limits the detaches of one host that run at the same time.
const detachesAtOnce = 8

// attempt is one try to fence one host.
type attempt struct {
	*Fencer
	who     shared.Asker
	host    string
	wants   []want
	live    map[string]shared.Live
	elected bool // this host is elected; otherwise the elected host has passed the lost host on to this one

	drops chan struct{} // a semaphore, because the drops of one host change the same proof

	mu      sync.Mutex
	dropped []string // the volumes whose hold was dropped
	wait    time.Duration
}

// attempt tries to fence a host, and drops its holds that other hosts wait for. It returns the time
// until the next try, or 0.
func (f *Fencer) attempt(ctx context.Context, a *attempt) (next time.Duration) {
	a.Fencer, a.drops = f, make(chan struct{}, 1)
	fc, err := f.readFence(ctx, a.host)
	switch {
	case err != nil:
		return f.Retry
	case fc.Live.Exists() || !fc.Node.Exists():
		return 0
	case fc.Node.Value.ProvenOff(fc.Meta.Value):
		a.dropProven(ctx, a.wants)
	default:
		a.fence(ctx, fc)
	}

	if len(a.dropped) > 0 && f.Wake != nil {
		f.Wake()
	}
	return a.wait
}

// fence gathers the proof that the host cannot write, and drops its holds.
func (a *attempt) fence(ctx context.Context, fc shared.Fence) {
	byDetach, byHook := a.sort(ctx, fc)
	wanted := len(byDetach)+len(byHook) > 0
	left := time.Duration(0)
	if wanted && a.elected {
		left = a.expectedBack(ctx, fc)
	}
	switch {
	case left > 0:
		a.delay(left)
		return
	case !wanted && fc.Node.Value.State != shared.NodeFencing:
		return
	case a.elected && len(byHook) > 0 && a.passOn(ctx, fc, byHook):
		return
	}

	if _, err := a.decideFence(ctx, a.host, func(fc shared.Fence) (shared.Txn, error) { return fc.Begin(a.who, now()) }); err != nil {
		a.delay(a.Retry)
		if !errors.Is(err, shared.ErrFencedElsewhere) {
			a.Log.Warn("cannot begin to fence a host; it is tried again", "host", a.host, "error", err)
		}
		return
	}
	defer a.end(ctx)
	if !wanted {
		return
	}

	a.Events(volume.Event{Type: volume.EventNodeFencing, Message: fmt.Sprintf("host %q is gone, and other hosts wait for its volumes %s", a.host, names(slices.Concat(byDetach, byHook)))})
	a.detachAll(ctx, byDetach)
	a.off(ctx, byHook)
}

// delay records that the next try is due after a time. The shortest time counts.
func (a *attempt) delay(wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.wait == 0 || wait < a.wait {
		a.wait = wait
	}
}

// took records that the hold on a volume was dropped.
func (a *attempt) took(v volume.Volume, how string) {
	a.mu.Lock()
	a.dropped = append(a.dropped, v.ID)
	a.mu.Unlock()

	a.count(1, 0)
	a.Events(volume.Event{Type: volume.EventTakenOver, Volume: v.ID, Plugin: v.PluginID, Message: fmt.Sprintf("taken from host %q, which %s", a.host, how)})
}

// fail records that a volume was not taken over, and says why.
func (a *attempt) fail(ctx context.Context, w want, err error) {
	a.delay(a.Retry)
	if errors.Is(err, shared.ErrNotReady) || errors.Is(err, shared.ErrUnreachable) || ctx.Err() != nil {
		a.tell(ctx, w, "it is taken over later: "+err.Error())
		return
	}

	a.count(0, 1)
	a.Log.Warn("cannot take a volume over from a host that is gone; it is tried again", "volume", w.id, "host", a.host, "error", err)
	a.tell(ctx, w, "cannot take it over: "+err.Error())
}

// sort returns the wanted volumes by the proof that their plugins permit. For the others, it says why
// they are not taken over.
func (a *attempt) sort(ctx context.Context, fc shared.Fence) (byDetach, byHook []want) {
	for _, w := range a.wants {
		l, err := a.readLost(ctx, a.host, w.id)
		if err != nil || !l.Situation.Hold.Exists() {
			continue // the next pass looks again
		}

		v := l.Situation.Volume.Value.Volume
		policy := fc.Info.Value.Plugins[v.PluginID].Fence
		switch {
		case v.Takeover == volume.TakeoverNever:
			a.unproven(ctx, w, "it has \"takeover: never\", so a person decides")
		case policy == plugin.FenceDetach && l.Situation.Hold.Value.Attachment == "":
			a.unproven(ctx, w, fmt.Sprintf("its plugin %s has \"fence: detach\", and it has no attachment", v.PluginID))
		case policy == plugin.FenceDetach:
			byDetach = append(byDetach, w)
		case policy == plugin.FenceHook, policy == plugin.FenceDetachWhenOff:
			byHook = append(byHook, w)
		default:
			a.unproven(ctx, w, fmt.Sprintf("its plugin %s has no \"fence\" on host %q, so only a person can prove that the host is off", v.PluginID, a.host))
		}
	}
	return byDetach, byHook
}

// unproven records that only a person can take a volume over, and why.
func (a *attempt) unproven(ctx context.Context, w want, why string) {
	a.delay(personEvery)
	a.tell(ctx, w, why)
}

// personEvery is the pause between two looks at a volume that only a person can take over.
const personEvery = 30 * time.Second

// expectedBack returns how long the host is still expected back, after its agent was stopped in order.
func (a *attempt) expectedBack(ctx context.Context, fc shared.Fence) time.Duration {
	left := fc.Node.Value.ExpectedBack() - a.absent(a.host)
	if left <= 0 {
		return 0
	}
	for _, w := range a.wants {
		a.tell(ctx, w, fmt.Sprintf("host %q was stopped in order, and is expected back within %s", a.host, shared.AwayFor))
	}
	return left
}

// off lets hooks switch the host off, and drops its holds if they prove it.
func (a *attempt) off(ctx context.Context, wants []want) {
	if len(wants) == 0 {
		return
	}

	_, err := a.decideFence(ctx, a.host, func(fc shared.Fence) (shared.Txn, error) { return fc.ProveReturned(a.who, now()) })
	fc := shared.Fence{}
	if err == nil {
		fc, err = a.readFence(ctx, a.host)
	}
	switch {
	case err == nil && fc.Node.Value.ProvenOff(fc.Meta.Value):
		a.told(fc.Node.Value.Fencing.Proven, "")
	case err == nil:
		err = a.askHooks(ctx, fc)
	}
	if err != nil && a.provenOff(ctx) {
		err = nil // a person has declared the host off while its hooks ran
	}
	if err == nil {
		a.dropProven(ctx, wants)
		return
	}
	for _, w := range wants {
		a.fail(ctx, w, err)
	}
}

// provenOff reports whether the cluster has a proof for the whole host now.
func (a *attempt) provenOff(ctx context.Context) bool {
	fc, err := a.readFence(ctx, a.host)
	return err == nil && fc.Node.Value.ProvenOff(fc.Meta.Value)
}

// told adds an event about the proof for the whole host.
func (a *attempt) told(kind shared.ProofKind, how string) {
	a.Events(volume.Event{Type: volume.EventNodeFenced, Message: fmt.Sprintf("host %q cannot write any more, proven%s (%s); other hosts can take its volumes over", a.host, how, kind)})
}

// end ends the fencing. It tries again until the store answers, because no other host ends the fencing of a
// host that is alive. After a new registration of this host, the next pass of any host ends it.
func (a *attempt) end(ctx context.Context) {
	for told := false; ctx.Err() == nil; backoff.Pause(ctx, a.Retry) {
		_, err := a.decideFence(ctx, a.host, func(fc shared.Fence) (shared.Txn, error) { return fc.End(a.who, now()) })
		if err == nil {
			return
		}
		if !told {
			a.Log.Warn("cannot end the fencing of a host; it is tried again", "host", a.host, "error", err)
			told = true
		}
		if !errors.Is(err, shared.ErrUnreachable) {
			a.delay(a.Retry)
			return
		}
	}
}

// tell writes for people why a volume is not taken over yet. The claim that waits shows it.
func (f *Fencer) tell(ctx context.Context, w want, answer string) {
	if w.key.Value.Answer == answer {
		return
	}
	now := w.key.Value
	now.Answer = answer
	_, _ = f.Store.Do(ctx, shared.Txn{ // if the key has changed, the next pass writes it
		If: []shared.Compare{shared.Unchanged(w.key.KV)}, Then: []shared.Op{shared.PutLeased(w.key.Key, w.key.Encode(now), w.key.Lease)},
	})
}

// names joins the ids of volumes for a message.
func names(wants []want) string {
	ids := make([]string, len(wants))
	for i, w := range wants {
		ids[i] = w.id
	}
	slices.Sort(ids)
	if len(ids) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:5], ", "), len(ids)-5)
	}
	return strings.Join(ids, ", ")
}

// now returns the time for a value in the cluster.
func now() time.Time { return time.Now().UTC() }
