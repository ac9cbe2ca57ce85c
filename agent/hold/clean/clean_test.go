package clean_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/agent/hold/clean"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// put returns the operation that sets a key.
func put(t *testing.T, key string, value any) shared.Op {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return shared.Put(key, raw)
}

// await waits until a condition is true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// noFencer fences no host.
type noFencer struct{}

func (noFencer) Pass(context.Context, shared.Asker, map[string]shared.Live, func(string, func())) (time.Duration, error) {
	return 0, nil
}

func (noFencer) PassFor(context.Context, shared.Asker, map[string]shared.Live, map[string]bool, func(string, func())) (time.Duration, error) {
	return 0, nil
}

func (noFencer) PassedOn() map[string]string { return nil }

// TestTakeOver lets two hosts clean up after a host that died during a ControllerPublishVolume. They
// detach it once by its node id, keep its hold, and end the call and a task that no call names. A
// contradiction is reported, although the list of another plugin has no end.
func TestTakeOver(t *testing.T) {
	store := memory.New().Open("/c/")
	var unpublished, empty, pages atomic.Int32
	plugins := call.Handlers{call.ListVolumes: func(context.Context, any) (any, error) {
		return call.VolumePage{Next: fmt.Sprint("page", pages.Add(1))}, nil
	}, call.ControllerUnpublish: func(_ context.Context, request any) (any, error) {
		if request.(call.ControllerUnpublishRequest).NodeID != "node-x" {
			empty.Add(1)
		}
		unpublished.Add(1)
		return call.Nothing{}, nil
	}}
	ready := shared.Node{Incarnation: 1, State: shared.NodeReady}
	txn := shared.Txn{Then: []shared.Op{
		put(t, shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}),
		put(t, shared.NodeKey("a"), ready), put(t, shared.NodeKey("b"), ready), put(t, shared.NodeKey("x"), ready),
		put(t, shared.LiveKey("a"), shared.Live{}), put(t, shared.LiveKey("b"), shared.Live{}), put(t, shared.LiveKey("x"), shared.Live{}),
		put(t, shared.VolumeKey("v"), shared.Definition{Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e", Provision: volume.Provisioned}}),
		put(t, shared.VolumeKey("endless"), shared.Definition{Attach: true, Volume: volume.Volume{
			ID: "endless", PluginID: "liar", Driver: "d", ExternalID: "e2", Provision: volume.Provisioned,
		}}),
		put(t, shared.HoldKey("x", "v"), shared.Hold{Operation: "o", Attachment: shared.Attaching, NodeID: "node-x"}),
		put(t, shared.CallKey("v"), shared.Call{Executor: "x", Incarnation: 1, Operation: "o", Call: call.ControllerPublish, Target: "x", NodeID: "node-x", Deadline: 50 * time.Millisecond}),
		put(t, shared.TaskKey("a", "w"), shared.Task{ID: "old", Requester: "x"}),
		put(t, shared.UseKey("v"), shared.Use{Access: call.SingleNodeWriter, Holder: "ghost"}),
	}}
	if _, err := store.Do(t.Context(), txn); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []*clean.Cleaner
	for _, name := range []string{"a", "b"} {
		c := clean.New(clean.Options{
			Store: store, Node: name, Asker: func() (shared.Asker, error) {
				return shared.Asker{Node: name, Incarnation: 1, Era: shared.Era{Epoch: 1}}, nil
			},
			View: func(id string) plugin.View {
				lies := id == "liar"
				return plugin.View{Known: true, Ready: true, ControllerTimeout: 50 * time.Millisecond, Info: plugin.Info{
					Driver: "d", HasController: true, Caps: plugin.Caps{List: lies, PublishedNodes: lies},
				}}
			},
			Plugin: func(volume.Volume, call.Method) (call.Caller, error) { return plugins, nil },
			Secrets: func(volume.Volume) (call.Secrets, error) {
				if name == "a" {
					return nil, errors.New("this host has no secrets") // so the other one ends the call
				}
				return nil, nil
			},
			Fencer: noFencer{}, Every: 20 * time.Millisecond, TTL: time.Second, Log: hclog.NewNullLogger(),
		})
		go c.Run(ctx)
		all = append(all, c)
	}

	get := func(key string) (kvs []shared.KV) {
		page, err := store.Range(t.Context(), shared.Span{Key: key}, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		return page.KVs
	}
	await(t, "the old task is deleted, and the ghost is reported", func() bool {
		return len(get(shared.TaskKey("a", "w"))) == 0 && len(all[0].Findings())+len(all[1].Findings()) == 1
	})
	if pages.Load() == 0 {
		t.Error("no host has listed the attachments")
	}
	if all[0].Elected() == all[1].Elected() {
		t.Error("not exactly one host is elected")
	}
	if unpublished.Load() != 0 {
		t.Fatal("the call of a living host was taken over")
	}

	if _, err := store.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Delete(shared.LiveKey("x"))}}); err != nil {
		t.Fatal(err)
	}
	await(t, "the call is ended", func() bool { return len(get(shared.CallKey("v"))) == 0 })
	hold, err := shared.Decode[shared.Hold](get(shared.HoldKey("x", "v"))[0])
	if err != nil || hold.Value.Attachment != shared.Unclear {
		t.Errorf("the hold is %+v, %v", hold.Value, err)
	}
	if unpublished.Load() != 1 || empty.Load() != 0 {
		t.Errorf("%d calls, %d of them for another node", unpublished.Load(), empty.Load())
	}
}

// TestHungPlugin ends the calls of a host that died for two volumes. The plugin of the first one, and the
// list of another plugin, give no answer. The call of the second volume is ended all the same.
func TestHungPlugin(t *testing.T) {
	store := memory.New().Open("/c/")
	definition := func(id, plugin string) shared.Op {
		return put(t, shared.VolumeKey(id), shared.Definition{Attach: true, Volume: volume.Volume{
			ID: id, PluginID: plugin, Driver: "d", ExternalID: "e-" + id, Provision: volume.Provisioned,
		}})
	}
	begun := func(id string) shared.Op {
		return put(t, shared.CallKey(id), shared.Call{
			Executor: "x", Incarnation: 1, Operation: "o", Call: call.ControllerPublish, Target: "x", NodeID: "node-x", Deadline: time.Millisecond,
		})
	}
	ready := shared.Node{Incarnation: 1, State: shared.NodeReady}
	txn := shared.Txn{Then: []shared.Op{
		put(t, shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}),
		put(t, shared.NodeKey("a"), ready), put(t, shared.NodeKey("x"), ready), put(t, shared.LiveKey("a"), shared.Live{}),
		definition("first", "hangs"), definition("second", "works"), definition("third", "lists"),
		begun("first"), begun("second"),
	}}
	if _, err := store.Do(t.Context(), txn); err != nil {
		t.Fatal(err)
	}

	hung := make(chan string, 2)
	hang := func(ctx context.Context, what string) (any, error) {
		select {
		case hung <- what:
		default:
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := clean.New(clean.Options{
		Store: store, Node: "a", Asker: func() (shared.Asker, error) {
			return shared.Asker{Node: "a", Incarnation: 1, Era: shared.Era{Epoch: 1}}, nil
		},
		View: func(id string) plugin.View {
			lists := id == "lists"
			return plugin.View{Known: true, Ready: true, ControllerTimeout: time.Minute, Info: plugin.Info{
				Driver: "d", HasController: true, Caps: plugin.Caps{List: lists, PublishedNodes: lists},
			}}
		},
		Plugin: func(v volume.Volume, _ call.Method) (call.Caller, error) {
			return call.Handlers{
				call.ListVolumes: func(ctx context.Context, _ any) (any, error) { return hang(ctx, "list") },
				call.ControllerUnpublish: func(ctx context.Context, _ any) (any, error) {
					if v.PluginID == "hangs" {
						return hang(ctx, "detach")
					}
					return call.Nothing{}, nil
				},
			}, nil
		},
		Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil },
		Fencer:  noFencer{},
		Every:   20 * time.Millisecond, TTL: time.Second, Log: hclog.NewNullLogger(),
	})
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()

	await(t, "a detach and a list in progress", func() bool { return len(hung) == 2 })
	if a, b := <-hung, <-hung; a == b {
		t.Errorf("the plugin was asked twice for a %s", a)
	}
	exists := func(id string) bool {
		page, err := store.Range(t.Context(), shared.Span{Key: shared.CallKey(id)}, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(page.KVs) > 0
	}
	await(t, "the end of the call for the other volume", func() bool { return !exists("second") })
	if !exists("first") {
		t.Error("the call without an answer has ended")
	}
	cancel()
	<-done // Run waits for the calls in flight
}

// countedStore counts the reads of all live hosts.
type countedStore struct {
	shared.Store
	lives atomic.Int32
	calls atomic.Int32
}

func (s *countedStore) Range(ctx context.Context, span shared.Span, limit int, revision int64) (shared.Page, error) {
	switch span {
	case shared.Lives():
		s.lives.Add(1)
	case shared.Calls():
		s.calls.Add(1)
	}
	return s.Store.Range(ctx, span, limit, revision)
}

// TestNotElected lets a host make passes that is not elected. It never reads all live hosts, because all hosts make
// a pass at the same time after an outage. It still takes over the call of a host that is gone, and leaves the call
// of a live host alone.
func TestNotElected(t *testing.T) {
	store := &countedStore{Store: memory.New().Open("/c/")}
	def := func(id string) shared.Op {
		return put(t, shared.VolumeKey(id), shared.Definition{Attach: true, Volume: volume.Volume{ID: id, PluginID: "p", Driver: "d", ExternalID: id, Provision: volume.Provisioned}})
	}
	begun := func(id, host string) shared.Op {
		return put(t, shared.CallKey(id), shared.Call{
			Executor: host, Incarnation: 1, Operation: "o", Call: call.ControllerPublish, Target: host, NodeID: "node-" + host, Deadline: time.Millisecond,
		})
	}
	ready := shared.Node{Incarnation: 1, State: shared.NodeReady}
	txn := shared.Txn{Then: []shared.Op{
		put(t, shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}), put(t, shared.LeaderKey, map[string]string{"node": "elsewhere"}),
		put(t, shared.NodeKey("a"), ready), put(t, shared.NodeKey("gone"), ready), put(t, shared.NodeKey("live"), ready),
		put(t, shared.LiveKey("a"), shared.Live{Incarnation: 1}), put(t, shared.LiveKey("live"), shared.Live{Incarnation: 1}),
		def("first"), def("second"), begun("first", "gone"), begun("second", "live"),
	}}
	if _, err := store.Do(t.Context(), txn); err != nil {
		t.Fatal(err)
	}

	plugins := call.Handlers{call.ControllerUnpublish: func(context.Context, any) (any, error) { return call.Nothing{}, nil }}
	c := clean.New(clean.Options{
		Store: store, Node: "a", Asker: func() (shared.Asker, error) {
			return shared.Asker{Node: "a", Incarnation: 1, Era: shared.Era{Epoch: 1}}, nil
		},
		View: func(string) plugin.View {
			return plugin.View{Known: true, Ready: true, ControllerTimeout: time.Minute, Info: plugin.Info{Driver: "d", HasController: true}}
		},
		Plugin:  func(volume.Volume, call.Method) (call.Caller, error) { return plugins, nil },
		Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil }, Fencer: noFencer{}, Every: 20 * time.Millisecond, Log: hclog.NewNullLogger(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go c.Run(ctx)

	get := func(id string) []shared.KV {
		page, err := store.Range(t.Context(), shared.Span{Key: shared.CallKey(id)}, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		return page.KVs
	}
	await(t, "the call of the host that is gone ends", func() bool { return len(get("first")) == 0 })
	passes := store.calls.Load()
	await(t, "another pass", func() bool { return store.calls.Load() > passes+1 })
	if len(get("second")) == 0 {
		t.Error("the call of a live host was ended")
	}
	if n := store.lives.Load(); n != 0 {
		t.Errorf("the host has read all live hosts %d times in %d passes", n, store.calls.Load())
	}
}
