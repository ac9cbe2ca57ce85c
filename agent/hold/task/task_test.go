package task_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/agent/hold/task"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

var v = volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e", Shared: true, Provision: volume.Provisioned}

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

// pair is a host "r" that has no controller, and a host "x" that has one.
type pair struct {
	t     *testing.T
	store shared.Store
	r     *task.Service

	unreadable atomic.Bool // the secrets of the volume, on x
	calls      atomic.Int32
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, store: memory.New().Open("/c/")}
	ready := shared.Node{Incarnation: 1, State: shared.NodeReady}
	p.do(put(t, shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}),
		put(t, shared.NodeKey("r"), ready), put(t, shared.NodeKey("x"), ready), put(t, shared.LiveKey("r"), shared.Live{}), put(t, shared.LiveKey("x"), shared.Live{}),
		put(t, shared.VolumeKey("v"), shared.Definition{Volume: v}))

	box, err := secret.OpenBox(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	p.do(put(t, shared.NodeInfoKey("r"), shared.NodeInfo{Version: "1", Plugins: map[string]shared.NodePlugin{"p": {Driver: "d"}}, Key: box.PublicKey()}))
	ctx := t.Context()
	for _, node := range []string{"r", "x"} {
		s := task.New(task.Options{
			Store: p.store, Node: node, Asker: func() (shared.Asker, error) { return shared.Asker{Node: node, Incarnation: 1}, nil },
			View: func(string) plugin.View {
				return plugin.View{Known: true, Ready: true, Info: plugin.Info{Driver: "d", HasController: node == "x"}}
			},
			Plugin: func(volume.Volume, call.Method) (call.Caller, error) {
				return call.Handlers{call.ControllerPublish: func(context.Context, any) (any, error) {
					p.calls.Add(1)
					return map[string]string{"lun": "7"}, nil
				}}, nil
			},
			Secrets: func(volume.Volume) (call.Secrets, error) {
				if p.unreadable.Load() {
					return nil, errors.New("cannot read the password")
				}
				return nil, nil
			},
			Box: box, Every: 10 * time.Millisecond, Log: hclog.NewNullLogger(),
		})
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		t.Cleanup(func() { <-done }) // the test's context ends before
		if node == "r" {
			p.r = s
		}
	}
	return p
}

func (p *pair) do(ops ...shared.Op) {
	p.t.Helper()
	if _, err := p.store.Do(p.t.Context(), shared.Txn{Then: ops}); err != nil {
		p.t.Fatal(err)
	}
}

// view returns the view of the plugin for a decision on the host without a controller.
func (p *pair) view() plugin.View {
	return p.r.Borrow(v, plugin.View{Known: true, Ready: true, Info: plugin.Info{Driver: "d"}})
}

// tell describes the plugin of the host with the controller.
func (p *pair) tell(one shared.NodePlugin) {
	p.t.Helper()
	p.do(put(p.t, shared.NodeInfoKey("x"), shared.NodeInfo{Version: "1", Plugins: map[string]shared.NodePlugin{"p": one}}))
}

// TestSilent tests that a plugin looks like one without a controller only after every host has
// described its plugins.
func TestSilent(t *testing.T) {
	p := newPair(t)
	lacks := func(words string) func() bool {
		return func() bool {
			view := p.view()
			return view.Unasked(call.ControllerPublish) && strings.Contains(view.Lacks("p", call.ControllerPublish), words)
		}
	}
	await(t, "the host that has not described its plugins is named", lacks(`host "x" has not said yet`))
	p.tell(shared.NodePlugin{})
	await(t, "the host whose plugin has not answered is named", lacks(`host "x" has not said yet`))
	p.tell(shared.NodePlugin{Driver: "d"})
	await(t, "the driver has no controller", func() bool { return p.view().Apart == nil })
	p.tell(shared.NodePlugin{Driver: "d", Controller: true, Caps: plugin.Caps{Attach: true}})
	await(t, "the controller of the other host is used", func() bool {
		view := p.view()
		return view.ReadyFor(call.ControllerPublish) && view.Info.Caps.Attach
	})
	p.do(shared.Delete(shared.LiveKey("x")))
	await(t, "the missing controller is named", lacks("no live host runs a controller of driver d"))
}

// TestSecrets tests that a host takes no task if it cannot read all secrets of the volume. The asking
// host learns the reason, and that no call was sent.
func TestSecrets(t *testing.T) {
	p := newPair(t)
	p.unreadable.Store(true)
	p.tell(shared.NodePlugin{Driver: "d", Controller: true, Caps: plugin.Caps{Attach: true}})
	await(t, "the other host can make the calls", func() bool { return p.view().ReadyFor(call.ControllerPublish) })
	p.do(put(t, shared.HoldKey("r", "v"), shared.Hold{Operation: "o", Attachment: shared.Attaching, NodeID: "n"}),
		put(t, shared.CallKey("v"), shared.Call{Executor: "r", Incarnation: 1, Operation: "o", Call: call.ControllerPublish, Target: "r", NodeID: "n"}))

	remote := task.Remote{Service: p.r, Volume: v}
	_, err := remote.Call(t.Context(), call.ControllerPublish, call.ControllerPublishRequest{ExternalID: "e", NodeID: "n"})
	var ce *volume.CallError
	if !errors.As(err, &ce) || ce.Code != volume.CodeNoExecutor || !ce.Unsent || !strings.Contains(ce.Message, `host "x": cannot read the password`) {
		t.Errorf("the error is %+v", err)
	}
	if p.calls.Load() != 0 {
		t.Error("the host has made the call without the secrets")
	}

	p.unreadable.Store(false)
	answer, err := remote.Call(t.Context(), call.ControllerPublish, call.ControllerPublishRequest{ExternalID: "e", NodeID: "n"})
	if got, _ := answer.(map[string]string); err != nil || got["lun"] != "7" || p.calls.Load() != 1 {
		t.Errorf("the answer is %v, %v, after %d calls", answer, err, p.calls.Load())
	}
}
