package fence

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// world is a cluster whose host "x" holds the volumes "db" and "nas" and is gone. Host "a" waits for
// volumes and fences.
type world struct {
	t     *testing.T
	store *counting
	who   shared.Asker
	f     *Fencer

	mu       sync.Mutex
	running  map[string]bool
	jobs     sync.WaitGroup
	detaches int
	detach   func() error // the answer to ControllerUnpublishVolume
	listed   []string     // the nodes that the driver lists; nil if it lists none
	hookCall int
	hook     func() error // the answer of the hook; nil if there is no hook
	during   func()       // runs while the hook runs, which then ends only when it is stopped; may be nil
	stopped  error        // why the hook was stopped
	ran      time.Duration

	live map[string]shared.Live // the live hosts for passes
}

// counting counts the requests to a store.
type counting struct {
	shared.Store
	mu       sync.Mutex
	requests int
	silent   bool // the store does not answer
}

func (c *counting) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	c.mu.Lock()
	c.requests++
	silent := c.silent
	c.mu.Unlock()
	if silent {
		return shared.Result{}, shared.ErrUnreachable
	}
	return c.Store.Do(ctx, t)
}

func (c *counting) Range(ctx context.Context, s shared.Span, limit int, revision int64) (shared.Page, error) {
	c.mu.Lock()
	c.requests++
	c.mu.Unlock()
	return c.Store.Range(ctx, s, limit, revision)
}

// newWorld makes the cluster. The plugin of the volumes has a value of "fence", and the host "x" is in a
// state.
func newWorld(t *testing.T, policy plugin.Fence, x shared.Node) *world {
	t.Helper()
	w := &world{
		t: t, store: &counting{Store: memory.New().Open("/c/")}, running: map[string]bool{}, detach: func() error { return nil },
		who: shared.Asker{Node: "a", Incarnation: 1, Era: shared.Era{Epoch: 1}}, live: map[string]shared.Live{"a": {Incarnation: 1}},
	}
	w.f = New(Options{
		Store: w.store, Node: "a", Hooks: w, Events: func(...volume.Event) {}, Log: hclog.NewNullLogger(),
		Detacher: func(context.Context, volume.Volume) (call.Caller, call.Secrets, time.Duration, error) {
			return call.Handlers{call.ControllerUnpublish: func(context.Context, any) (any, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.detaches++
				return call.Nothing{}, w.detach()
			}}, nil, time.Second, nil
		},
		Published: func(context.Context, volume.Volume) ([]string, bool, error) { return w.listed, w.listed != nil, nil },
	})
	x.Incarnation = 4
	w.put(shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1})
	w.put(shared.NodeKey("a"), shared.Node{Incarnation: 1, State: shared.NodeReady})
	w.put(shared.NodeKey("x"), x)
	w.put(shared.LiveKey("a"), shared.Live{Incarnation: 1})
	w.put(shared.NodeInfoKey("x"), shared.NodeInfo{Plugins: map[string]shared.NodePlugin{"p": {Driver: "d", Fence: policy}}})
	for id, h := range map[string]shared.Hold{
		"db":  {Operation: "o", Access: call.SingleNodeWriter, Attachment: shared.Attached, NodeID: "node-x"},
		"nas": {Operation: "o", Access: call.SingleNodeWriter},
	} {
		w.put(shared.VolumeKey(id), shared.Definition{Volume: volume.Volume{ID: id, PluginID: "p", Driver: "d", ExternalID: "e-" + id, Provision: volume.Provisioned}})
		w.put(shared.UseKey(id), shared.Use{Access: call.SingleNodeWriter, Holder: "x", Generation: 1})
		w.put(shared.HoldKey("x", id), h)
	}
	return w
}

func (w *world) put(key string, value any) {
	w.t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.Do(w.t.Context(), shared.Txn{Then: []shared.Op{shared.Put(key, raw)}}); err != nil {
		w.t.Fatal(err)
	}
}

// Names, Off and the methods below are the hook of host "a".
func (w *world) Names() []string {
	if w.hook == nil {
		return nil
	}
	return []string{"ipmi"}
}

func (w *world) Off(ctx context.Context, _ string, _ shared.Machine) (string, error) {
	w.hookCall++
	if w.during != nil {
		begun := time.Now()
		w.during()
		<-ctx.Done()
		w.stopped, w.ran = context.Cause(ctx), time.Since(begun)
		return "", w.stopped
	}
	return "ipmi", w.hook()
}

// want says that host "a" waits for a volume.
func (w *world) want(id string) { w.put(shared.WantedKey(id, "a"), shared.Wanted{}) }

// pass makes passes for a time, each when it is due, and waits for their jobs.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(d); ; {
		due, err := w.f.Pass(w.t.Context(), w.who, w.live, func(host string, job func()) {
			w.jobs.Go(job)
		})
		if err != nil {
			w.t.Fatal(err)
		}
		w.jobs.Wait()
		if due == 0 {
			due = time.Second // as if another event had led to the pass
		}
		if !time.Now().Add(due).Before(end) {
			time.Sleep(time.Until(end))
			return
		}
		time.Sleep(due)
	}
}

// get returns the decoded value of a key.
func get[T any](w *world, key string) shared.Entry[T] {
	w.t.Helper()
	page, err := w.store.Range(w.t.Context(), shared.Span{Key: key}, 1, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(page.KVs) == 0 {
		return shared.Entry[T]{}
	}
	e, err := shared.Decode[T](page.KVs[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// TestPass checks which holds passes drop, by the proof that the plugin permits.
func TestPass(t *testing.T) {
	off := func() error { return nil }
	lies := func() error { return errors.New("its status says on") }
	notFound := &volume.CallError{Code: volume.CodeNotFound, Answered: true}
	for name, c := range map[string]struct {
		policy plugin.Fence
		x      shared.Node
		wants  []string
		change func(*world)

		dropped []string
		state   shared.NodeState
		proven  shared.ProofKind
		answers map[string]string // parts of the answers to those that wait
	}{
		"detach":           {policy: plugin.FenceDetach, wants: []string{"db"}, dropped: []string{"db"}, state: shared.NodeFenced},
		"nothing wanted":   {policy: plugin.FenceDetach, state: shared.NodeReady},
		"no attachment":    {policy: plugin.FenceDetach, wants: []string{"nas"}, state: shared.NodeReady, answers: map[string]string{"nas": "no attachment"}},
		"one of both":      {policy: plugin.FenceDetach, wants: []string{"db", "nas"}, dropped: []string{"db"}, state: shared.NodeFenced, answers: map[string]string{"nas": "no attachment"}},
		"no policy":        {wants: []string{"db"}, state: shared.NodeReady, answers: map[string]string{"db": "has no \"fence\""}},
		"not known there":  {policy: plugin.FenceDetach, wants: []string{"db"}, change: func(w *world) { w.detach = func() error { return notFound } }, state: shared.NodeReady, answers: map[string]string{"db": "cannot detach it"}},
		"still listed":     {policy: plugin.FenceDetach, wants: []string{"db"}, change: func(w *world) { w.listed = []string{"node-x"} }, state: shared.NodeReady, answers: map[string]string{"db": "still lists it"}},
		"not listed":       {policy: plugin.FenceDetach, wants: []string{"db"}, change: func(w *world) { w.listed = []string{"node-y"} }, dropped: []string{"db"}, state: shared.NodeFenced},
		"hook":             {policy: plugin.FenceHook, wants: []string{"db", "nas"}, change: func(w *world) { w.hook = off }, dropped: []string{"db", "nas"}, state: shared.NodeFenced, proven: shared.ProvenHook},
		"hook and detach":  {policy: plugin.FenceDetachWhenOff, wants: []string{"db"}, change: func(w *world) { w.hook = off }, dropped: []string{"db"}, state: shared.NodeFenced, proven: shared.ProvenHook},
		"no hook":          {policy: plugin.FenceHook, wants: []string{"db"}, state: shared.NodeReady, answers: map[string]string{"db": "no fence hook"}},
		"a hook that lies": {policy: plugin.FenceHook, wants: []string{"db"}, change: func(w *world) { w.hook = lies }, state: shared.NodeFenced, answers: map[string]string{"db": "says on"}},
		"back after boot": {policy: plugin.FenceHook, x: shared.Node{Boot: "old"}, wants: []string{"db"}, change: func(w *world) {
			w.put(shared.ReturnedKey("x"), shared.Returned{Boot: "new"})
		}, dropped: []string{"db"}, state: shared.NodeFenced, proven: shared.ProvenReturned},
		"expected back": {policy: plugin.FenceDetach, x: shared.Node{State: shared.NodeAway}, wants: []string{"db"}, state: shared.NodeAway, answers: map[string]string{"db": "expected back"}},
		"abandoned":     {policy: plugin.FenceDetach, x: shared.Node{State: shared.NodeFencing, Fencing: &shared.Fencing{By: "gone", Was: shared.NodeDraining, Era: shared.Era{Epoch: 1}}}, state: shared.NodeDraining},
		"never": {policy: plugin.FenceDetach, wants: []string{"db"}, change: func(w *world) {
			w.put(shared.VolumeKey("db"), shared.Definition{Volume: volume.Volume{ID: "db", PluginID: "p", Takeover: volume.TakeoverNever}})
		}, state: shared.NodeReady, answers: map[string]string{"db": "takeover: never"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if c.x.State == "" {
					c.x.State = shared.NodeReady
				}
				w := newWorld(t, c.policy, c.x)
				if c.change != nil {
					c.change(w)
				}
				for _, id := range c.wants {
					w.want(id)
				}
				w.pass(20 * time.Second)

				for _, id := range []string{"db", "nas"} {
					wanted := true
					for _, d := range c.dropped {
						wanted = wanted && d != id
					}
					if holds := get[shared.Hold](w, shared.HoldKey("x", id)).Exists(); holds != wanted {
						t.Errorf("host x holds volume %s: %t", id, holds)
					}
					if answer := get[shared.Wanted](w, shared.WantedKey(id, "a")).Value.Answer; !strings.Contains(answer, c.answers[id]) || answer != "" && c.answers[id] == "" {
						t.Errorf("the answer about volume %s is %q", id, answer)
					}
				}
				n := get[shared.Node](w, shared.NodeKey("x")).Value
				proven := shared.ProofKind("")
				if n.Fencing != nil {
					proven = n.Fencing.Proven
				}
				if n.State != c.state || proven != c.proven || n.Incarnation != 4 {
					t.Errorf("host x becomes %+v, proven %q", n, proven)
				}
				if p := get[shared.Proof](w, shared.FencedKey("x", 4)).Value; len(p.Drops) != len(c.dropped) {
					t.Errorf("the proof is %+v", p)
				}
			})
		})
	}
}

// TestExpectedBack checks that a host whose agent was stopped in order is fenced only after it was expected
// back.
func TestExpectedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plugin.FenceDetach, shared.Node{State: shared.NodeAway})
		w.want("db")
		w.pass(shared.AwayFor - time.Second)
		if !get[shared.Hold](w, shared.HoldKey("x", "db")).Exists() {
			t.Fatal("the hold was dropped too early")
		}
		w.pass(time.Minute)
		if get[shared.Hold](w, shared.HoldKey("x", "db")).Exists() {
			t.Errorf("the hold was not dropped: %+v", get[shared.Wanted](w, shared.WantedKey("db", "a")).Value)
		}
	})
}

// TestRetries checks how often tries are made in an hour, and how many requests they need. A volume that
// appears in between does not wait.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plugin.FenceHook, shared.Node{State: shared.NodeReady})
		w.hook = func() error { return errors.New("no answer") }
		w.want("db")
		w.pass(time.Hour)
		if w.hookCall < 50 || w.hookCall > 61 {
			t.Errorf("the hook was asked %d times in an hour", w.hookCall)
		}

		w = newWorld(t, plugin.FenceNone, shared.Node{State: shared.NodeReady})
		w.want("db")
		before := w.store.requests
		w.pass(time.Hour)
		if perHour := w.store.requests - before; perHour > 60*2*15 {
			t.Errorf("a volume that only a person can take over leads to %d requests in an hour", perHour)
		}
		w.want("nas")
		w.pass(time.Second)
		if answer := get[shared.Wanted](w, shared.WantedKey("nas", "a")).Value.Answer; answer == "" {
			t.Error("a further volume has no answer")
		}
	})
}

// TestTakeProven checks that the statement of a person frees the wanted volumes at once.
func TestTakeProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plugin.FenceNone, shared.Node{State: shared.NodeFenced, Fencing: &shared.Fencing{By: "a", Era: shared.Era{Epoch: 1}, Proven: shared.ProvenPerson}})
		w.want("db")
		if taken := w.f.TakeProven(t.Context(), w.who, "x"); len(taken) != 1 || taken[0] != "db" {
			t.Errorf("taken: %v", taken)
		}
		c := get[shared.Call](w, shared.CallKey("db")).Value
		if get[shared.Hold](w, shared.HoldKey("x", "db")).Exists() || !c.TakenOver("a") || c.NodeID != "node-x" {
			t.Errorf("the call for the attachment is %+v", c)
		}
		if !get[shared.Hold](w, shared.HoldKey("x", "nas")).Exists() {
			t.Error("a hold that no host waits for was dropped")
		}
	})
}

// TestHookStopped checks that a hook which runs is stopped as soon as it must not switch the host off any more, and
// that the cluster shows why. The host "x" holds the volume until there is a proof.
func TestHookStopped(t *testing.T) {
	fencing := shared.Fencing{By: "b", Era: shared.Era{Epoch: 1}}
	for name, c := range map[string]struct {
		during  func(*world)
		words   string // of the reason
		atOnce  bool
		dropped bool
	}{
		"a person declares the host off": {func(w *world) {
			is := fencing
			is.Proven = shared.ProvenPerson
			w.put(shared.NodeKey("x"), shared.Node{Incarnation: 4, State: shared.NodeFenced, Fencing: &is})
		}, "is proven off already", true, true},
		"the host is back": {func(w *world) {
			w.put(shared.ReturnedKey("x"), shared.Returned{Boot: "boot", Mounted: []string{"db"}})
		}, "is back", true, false},
		"the host is alive": {func(w *world) { w.put(shared.LiveKey("x"), shared.Live{Incarnation: 5}) }, "is alive", true, false},
		"another host fences it": {func(w *world) {
			w.put(shared.NodeKey("x"), shared.Node{Incarnation: 4, State: shared.NodeFencing, Fencing: &fencing})
		}, "another host fences", true, false},
		"the cluster was restored": {func(w *world) {
			w.put(shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1, Suspended: "restored"})
		}, "until a person resumes it", true, false},
		"the store does not answer":  {func(w *world) { w.setSilent(true) }, "cannot see whether it still fences", false, false},
		"something else has changed": {func(w *world) { w.put(shared.NodeKey("y"), shared.Node{}) }, "deadline exceeded", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, plugin.FenceHook, shared.Node{State: shared.NodeReady, Boot: "boot"})
				w.hook = func() error { return errors.New("it is asked twice") }
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				w.during = func() { c.during(w) }
				w.want("db")
				w.passOnce(ctx)

				if w.hookCall != 1 || w.stopped == nil || !strings.Contains(w.stopped.Error(), c.words) {
					t.Fatalf("after %d calls, the hook was stopped with %v", w.hookCall, w.stopped)
				}
				if c.atOnce && w.ran > time.Second || name == "the store does not answer" && (w.ran < blindFor || w.ran > 2*blindFor) {
					t.Errorf("the hook was stopped after %s", w.ran)
				}
				w.setSilent(false)
				if holds := get[shared.Hold](w, shared.HoldKey("x", "db")).Exists(); holds == c.dropped {
					t.Errorf("host x holds the volume: %t", holds)
				}
				hooks := get[shared.Proof](w, shared.FencedKey("x", 4)).Value.Hooks
				recorded := len(hooks) == 1 && strings.HasPrefix(hooks[0].Outcome, "cancelled: ") && strings.Contains(hooks[0].Outcome, c.words)
				if c.atOnce && !recorded {
					t.Errorf("the cluster has recorded the hooks %+v", hooks)
				}
			})
		})
	}
}

// setSilent decides whether the store answers.
func (w *world) setSilent(silent bool) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.silent = silent
}

// passOnce makes one pass, and waits for its jobs.
func (w *world) passOnce(ctx context.Context) {
	w.t.Helper()
	if _, err := w.f.Pass(ctx, w.who, w.live, func(_ string, job func()) { w.jobs.Go(job) }); err != nil {
		w.t.Fatal(err)
	}
	w.jobs.Wait()
}

// TestReturnedHostIsNotSwitchedOff checks that no hook is asked about a host whose agent is back and has volumes
// mounted. The host then registers, because its fencing ends.
func TestReturnedHostIsNotSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plugin.FenceHook, shared.Node{State: shared.NodeReady, Boot: "boot"})
		w.hook = func() error { return nil }
		w.put(shared.ReturnedKey("x"), shared.Returned{Boot: "boot", Mounted: []string{"db"}})
		w.want("db")
		w.pass(20 * time.Second)
		if n := get[shared.Node](w, shared.NodeKey("x")).Value; w.hookCall != 0 || n.State != shared.NodeReady {
			t.Errorf("after %d calls of hooks, the host is %+v", w.hookCall, n)
		}
		if answer := get[shared.Wanted](w, shared.WantedKey("db", "a")).Value.Answer; !strings.Contains(answer, "is back") {
			t.Errorf("the answer is %q", answer)
		}
	})
}

// TestPassOn checks which host fences if the elected one has no hook, or if its hook fails.
func TestPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plugin.FenceHook, shared.Node{State: shared.NodeReady})
		w.put(shared.NodeKey("b"), shared.Node{Incarnation: 2, State: shared.NodeReady})
		w.put(shared.LiveKey("b"), shared.Live{Incarnation: 2})
		for _, host := range []string{"b", "gone", "x"} {
			w.put(shared.NodeInfoKey(host), shared.NodeInfo{Hooks: []string{"ipmi"}, Plugins: map[string]shared.NodePlugin{"p": {Driver: "d", Fence: plugin.FenceHook}}})
		}
		w.put(shared.NodeInfoKey("none"), shared.NodeInfo{})
		w.put(shared.LiveKey("none"), shared.Live{})
		w.live = map[string]shared.Live{"a": {Incarnation: 1}, "b": {Incarnation: 2}, "none": {}}
		w.want("db")
		w.pass(10 * time.Second)
		if to := w.f.PassedOn()["x"]; to != "b" {
			t.Fatalf("the fencing is passed on to %q", to)
		}
		if n := get[shared.Node](w, shared.NodeKey("x")).Value; n.State != shared.NodeReady {
			t.Errorf("the elected host fences as well: %+v", n)
		}

		// Host b fences, but not another host that was not passed on to it.
		b := w.f
		w.f = New(b.Options)
		w.f.Node = "b"
		w.hook = func() error { return nil }
		who := shared.Asker{Node: "b", Incarnation: 2, Era: shared.Era{Epoch: 1}}
		for _, lost := range []map[string]bool{{"y": true}, {"x": true}} {
			due, err := w.f.PassFor(t.Context(), who, w.live, lost, func(_ string, job func()) { w.jobs.Go(job) })
			w.jobs.Wait()
			if err != nil || due == 0 || w.hookCall > 0 != lost["x"] {
				t.Fatalf("for %v: %d calls of hooks, next try in %s, %v", lost, w.hookCall, due, err)
			}
		}
		if get[shared.Hold](w, shared.HoldKey("x", "db")).Exists() {
			t.Error("host x holds the volume")
		}
		if p := get[shared.Proof](w, shared.FencedKey("x", 4)).Value; p.Kind != shared.ProvenHook || p.Hooks[0].By != "b" || p.Drops[0].By != "b" {
			t.Errorf("the proof is %+v", p)
		}
	})
}

// TestTurns checks that hosts with hooks take turns while hooks fail, and that a host that is gone loses its turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plugin.FenceHook, shared.Node{State: shared.NodeReady})
		w.hook = func() error { return errors.New("no answer") }
		w.put(shared.NodeInfoKey("b"), shared.NodeInfo{Hooks: []string{"ipmi"}})
		w.live = map[string]shared.Live{"a": {Incarnation: 1}, "b": {Incarnation: 2}}
		w.want("db")
		w.pass(10 * time.Second)
		if passed := w.f.PassedOn(); len(passed) > 0 || w.hookCall != 1 {
			t.Fatalf("before a failure, the fencing is passed on to %v, after %d calls", passed, w.hookCall)
		}
		w.pass(time.Minute)
		if to := w.f.PassedOn()["x"]; to != "b" || w.hookCall != 1 {
			t.Errorf("after a failure, the fencing is passed on to %q, after %d calls", to, w.hookCall)
		}
		delete(w.live, "b")
		w.pass(10 * time.Second)
		if passed := w.f.PassedOn(); len(passed) > 0 || w.hookCall != 2 {
			t.Errorf("after the end of host b, the fencing is passed on to %v, after %d calls", passed, w.hookCall)
		}
	})
}
