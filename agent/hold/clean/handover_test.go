package clean_test

import (
	"context"
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

// TestHandOver lets host "a", which has no controller, drop a hold because of a proof. Host "b" has a controller, and
// makes the detach at once, although the deadline of the call is an hour, and passes without an event are rare. It does
// not matter which host is elected. The driver does not know the node any more. After a proof that the whole host
// cannot write, that is as good as a success.
func TestHandOver(t *testing.T) {
	for _, elected := range []string{"a", "b"} {
		t.Run("elected "+elected, func(t *testing.T) {
			store := memory.New().Open("/c/")
			do := func(ops ...shared.Op) {
				t.Helper()
				if _, err := store.Do(t.Context(), shared.Txn{Then: ops}); err != nil {
					t.Fatal(err)
				}
			}
			ready := shared.Node{Incarnation: 1, State: shared.NodeReady}
			do(put(t, shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}),
				put(t, shared.NodeKey("a"), ready), put(t, shared.NodeKey("b"), ready), put(t, shared.NodeKey("x"), shared.Node{Incarnation: 1, State: shared.NodeFenced}),
				put(t, shared.LiveKey("a"), shared.Live{Incarnation: 1}), put(t, shared.LiveKey("b"), shared.Live{Incarnation: 1}),
				put(t, shared.VolumeKey("v"), shared.Definition{Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e", Provision: volume.Provisioned}}))

			var detached atomic.Int32
			all := map[string]*clean.Cleaner{}
			for _, name := range []string{"a", "b"} {
				all[name] = clean.New(clean.Options{
					Store: store, Node: name, Asker: func() (shared.Asker, error) {
						return shared.Asker{Node: name, Incarnation: 1, Era: shared.Era{Epoch: 1}}, nil
					},
					View: func(string) plugin.View {
						return plugin.View{Known: true, Ready: true, ControllerTimeout: time.Hour, Info: plugin.Info{Driver: "d", HasController: name == "b"}}
					},
					Plugin: func(volume.Volume, call.Method) (call.Caller, error) {
						return call.Handlers{call.ControllerUnpublish: func(context.Context, any) (any, error) {
							detached.Add(1)
							return nil, &volume.CallError{Code: volume.CodeNotFound, Answered: true}
						}}, nil
					},
					Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil },
					Fencer:  noFencer{}, Every: time.Hour, TTL: 2 * time.Second, Log: hclog.NewNullLogger(),
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go all[elected].Run(ctx)
			await(t, "the election", all[elected].Elected)
			for name, c := range all {
				if name != elected {
					go c.Run(ctx)
				}
			}

			do(put(t, shared.CallKey("v"), shared.Call{
				Executor: "a", Incarnation: 1, Operation: "o", Call: call.ControllerUnpublish, Target: "x", NodeID: "node-x", Deadline: time.Hour, Taken: true,
			}))
			await(t, "the end of the call", func() bool {
				all["a"].Wake() // as after the drop
				page, err := store.Range(t.Context(), shared.Span{Key: shared.CallKey("v")}, 1, 0)
				return err == nil && len(page.KVs) == 0
			})
			if n := detached.Load(); n != 1 {
				t.Errorf("the volume was detached %d times", n)
			}
		})
	}
}
