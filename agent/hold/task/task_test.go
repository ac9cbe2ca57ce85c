package task_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	own   *memory.Store // of the host "r"
	r, x  *task.Service

	unreadable atomic.Bool // the secrets of the volume, on x
	calls      atomic.Int32
	outcome    func() error // of a call; nil means success. Set before the first call
	overtaken  chan time.Duration
	listed     error // why the detach of a lost host is no proof. Set before the call
}

func newPair(t *testing.T) *pair {
	t.Helper()
	server := memory.New()
	p := &pair{t: t, store: server.Open("/c/"), own: server.Open("/c/"), outcome: func() error { return nil }, overtaken: make(chan time.Duration, 1)}
	ready := shared.Node{Incarnation: 1, State: shared.NodeReady}
	p.do(put(t, shared.MetaKey, shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}),
		put(t, shared.NodeKey("r"), ready), put(t, shared.NodeKey("x"), ready), put(t, shared.LiveKey("r"), shared.Live{}), put(t, shared.LiveKey("x"), shared.Live{}),
		put(t, shared.VolumeKey("v"), shared.Definition{Volume: v}))

	box, err := secret.OpenBox(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	p.do(put(t, shared.NodeInfoKey("r"), shared.NodeInfo{Version: "1", Plugins: map[string]shared.NodePlugin{"p": {Driver: "d"}}, Key: box.PublicKey()}))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for node, store := range map[string]shared.Store{"r": p.own, "x": p.store} {
		s := task.New(task.Options{
			Store: store, Node: node, Asker: func() (shared.Asker, error) {
				return shared.Asker{Node: node, Incarnation: 1, Era: shared.Era{Epoch: 1}}, nil
			},
			View: func(string) plugin.View {
				return plugin.View{Known: true, Ready: true, Info: plugin.Info{Driver: "d", HasController: node == "x"}}
			},
			Plugin: func(volume.Volume, call.Method) (call.Caller, error) {
				return call.Handlers{call.ControllerPublish: func(context.Context, any) (any, error) {
					p.calls.Add(1)
					return map[string]string{"lun": "7"}, p.outcome()
				}, call.ControllerUnpublish: func(context.Context, any) (any, error) {
					p.calls.Add(1)
					return call.Nothing{}, p.outcome()
				}}, nil
			},
			Secrets: func(volume.Volume) (call.Secrets, error) {
				if p.unreadable.Load() {
					return nil, errors.New("cannot read the password")
				}
				return nil, nil
			},
			Overtaken: func(id, node, nodeID string, wait time.Duration) {
				if id != "v" || node != "r" || nodeID != "n" {
					t.Errorf("the attachment of volume %q to host %q (%q) is reported", id, node, nodeID)
				}
				p.overtaken <- wait
			},
			Detached: func(_ context.Context, _ volume.Volume, nodeID string) error {
				if nodeID != "n" || node != "x" {
					t.Errorf("host %q looks for the node %q", node, nodeID)
				}
				return p.listed
			},
			Box: box, Every: 10 * time.Millisecond, Log: hclog.NewNullLogger(),
		})
		running.Go(func() { s.Run(ctx) })
		if node == "r" {
			p.r = s
		} else {
			p.x = s
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

// attaching lets the other host offer a controller, and announces the attachment of the volume to the
// host without one.
func (p *pair) attaching() {
	p.t.Helper()
	p.tell(shared.NodePlugin{Driver: "d", Controller: true, Caps: plugin.Caps{Attach: true}})
	await(p.t, "the other host can make the calls", func() bool { return p.view().ReadyFor(call.ControllerPublish) })
	p.do(put(p.t, shared.HoldKey("r", "v"), shared.Hold{Operation: "o", Attachment: shared.Attaching, NodeID: "n"}),
		put(p.t, shared.CallKey("v"), shared.Call{Executor: "r", Incarnation: 1, Operation: "o", Call: call.ControllerPublish, Target: "r", NodeID: "n"}))
}

// TestOvertaken takes over a task while its executor is in the call. The executor reports an attachment
// if the call may have made one, and when it can have no further effect.
func TestOvertaken(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error
		reports bool
		late    bool // the call may take effect after its answer
	}{
		{name: "done", reports: true},
		{name: "uncertain", err: &volume.CallError{Code: "DeadlineExceeded"}, reports: true, late: true},
		{name: "refused", err: &volume.CallError{Code: "InvalidArgument", Answered: true}},
		{name: "unsent", err: &volume.CallError{Code: "DeadlineExceeded", Unsent: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			p.outcome = func() error {
				if p.calls.Load() > 1 {
					return nil
				}
				p.do(shared.Delete(shared.CallKey("v")), shared.Delete(shared.TaskKey("x", "v")))
				return c.err
			}
			p.attaching()
			remote := task.Remote{Service: p.r, Volume: v}
			if _, err := remote.Call(t.Context(), call.ControllerPublish, call.ControllerPublishRequest{ExternalID: "e", NodeID: "n"}); err == nil {
				t.Error("the task that was taken over has succeeded")
			}
			p.attaching()
			if _, err := remote.Call(t.Context(), call.ControllerPublish, call.ControllerPublishRequest{ExternalID: "e", NodeID: "n"}); err != nil {
				t.Fatalf("the next task, which the executor begins after the end of the first: %v", err)
			}
			select {
			case wait := <-p.overtaken:
				if !c.reports || c.late != (wait > 0) {
					t.Errorf("an attachment is reported, which can change for %s", wait)
				}
			default:
				if c.reports {
					t.Error("no attachment is reported")
				}
			}
		})
	}
}

// TestLeftTask cuts the requester off from the store before it deletes the task that has a result. The executor
// keeps the task as long as the announced call names it, and deletes it then.
func TestLeftTask(t *testing.T) {
	p := newPair(t)
	p.attaching()
	p.own.SetFaults(func(txn shared.Txn) memory.Fault {
		if slices.ContainsFunc(txn.Then, func(op shared.Op) bool { return op.Kind == shared.OpDelete }) {
			return memory.Unreachable
		}
		return memory.None
	})
	remote := task.Remote{Service: p.r, Volume: v}
	if _, err := remote.Call(t.Context(), call.ControllerPublish, call.ControllerPublishRequest{ExternalID: "e", NodeID: "n"}); err != nil {
		t.Fatal(err)
	}

	left := func() bool {
		page, err := p.store.Range(t.Context(), shared.Tasks(), 1, 0)
		return err == nil && len(page.KVs) > 0
	}
	if !left() {
		t.Error("the task is gone before the announced call has ended")
	}
	p.do(shared.Delete(shared.CallKey("v")))
	await(t, "the executor deletes the task", func() bool { return !left() })
}

// TestSecrets tests that a host takes no task if it cannot read all secrets of the volume. The asking
// host learns the reason, and that no call was sent.
func TestSecrets(t *testing.T) {
	p := newPair(t)
	p.unreadable.Store(true)
	p.attaching()

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

// TestDetacher lets a host without a controller detach a lost host, whose node id is "n". The host with the controller
// makes the call, and also checks the list of the driver if the call belongs to a fencing.
func TestDetacher(t *testing.T) {
	p := newPair(t)
	p.tell(shared.NodePlugin{Driver: "d", Controller: true, ControllerTimeout: 7 * time.Second})
	for _, c := range []struct {
		name   string
		fence  bool
		listed error
		failed string
	}{
		{"a proof", true, nil, ""},
		{"the driver still lists the node", true, errors.New("still lists it"), "still lists it"},
		{"a call that is no proof", false, errors.New("still lists it"), ""},
	} {
		p.listed = c.listed
		p.do(put(t, shared.CallKey("v"), shared.Call{
			Executor: "r", Incarnation: 1, Operation: c.name, Call: call.ControllerUnpublish, Target: "lost", NodeID: "n", Fence: c.fence,
		}))
		client, _, within, err := p.r.Detacher(t.Context(), v)
		if err != nil || within != 7*time.Second {
			t.Fatalf("%s: the deadline is %s, %v", c.name, within, err)
		}
		err = call.Run(t.Context(), client, call.ControllerUnpublishRequest{ExternalID: "e", NodeID: "n"})
		var ce *volume.CallError
		answered := errors.As(err, &ce) && !ce.Uncertain() && strings.Contains(ce.Message, c.failed)
		if (err != nil) != (c.failed != "") || err != nil && !answered {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if n := p.calls.Load(); n != 3 {
		t.Errorf("%d calls were made", n)
	}

	if client, _, _, err := p.x.Detacher(t.Context(), v); err != nil || client == nil {
		t.Errorf("the host with the controller: %v", err)
	} else if _, remote := client.(task.Remote); remote {
		t.Error("the host with the controller asks another host")
	}
	p.unreadable.Store(true)
	p.do(shared.Delete(shared.LiveKey("x")))
	await(t, "the end of the live controller", func() bool {
		_, _, _, err := p.r.Detacher(t.Context(), v)
		return err != nil
	})
	for words, s := range map[string]*task.Service{"has no controller on this host, and no other live host": p.r, "cannot read the password, and no other live host": p.x} {
		if _, _, _, err := s.Detacher(t.Context(), v); !errors.Is(err, volume.ErrPluginUnavailable) || !strings.Contains(err.Error(), words) {
			t.Errorf("without a live controller: %v, want %q", err, words)
		}
	}
}
