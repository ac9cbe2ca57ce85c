package volume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestExplain(t *testing.T) {
	down := plugin.View{Known: true, State: "backing off", Reason: "exit status 1", Info: view().Info}
	failed := func(k call.Method, alloc string, tries int, retry volume.Retry) *volume.Attempt {
		return &volume.Attempt{
			Action: volume.Action{Kind: k, Alloc: alloc}, Tries: tries,
			Err: &volume.CallError{Step: string(k), Code: "Internal", Message: "busy", Retry: retry},
		}
	}
	releasing := func(r *volume.Record, _ *volume.Observed) { *r = must(volume.Detach(*r, "a")) }
	pending := func(r *volume.Record, o *volume.Observed) {
		edit(r, func(c *volume.Claim) { c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil })
		o.Targets = nil
	}
	without := func(how volume.Without) func(*volume.Record, *volume.Observed) {
		return func(r *volume.Record, _ *volume.Observed) { *r = must(volume.DetachWithout(*r, "a", how)) }
	}
	failedHow := func(how volume.Without) *volume.Attempt {
		at := failed(volume.Unmount, "a", 3, volume.RetryBackoff)
		at.Action.How = how
		return at
	}
	for _, tt := range []struct {
		name   string
		change func(*volume.Record, *volume.Observed)
		at     *volume.Attempt
		want   string
		note   string
		fix    string
	}{
		{"free", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view()}
		}, nil, "free: free", "", ""},
		{"free, and the plugin is down", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: down}
		}, nil, "free: free", "", ""},
		{"being created", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view()}
			r.Volume.Provision = volume.Provisioning
		}, nil, "stuck: stuck: creating", "creating was begun and has not been seen to end", "volctl volume create data --plugin=p --access-mode=single-node-multi-writer"},
		{"being created, and the call runs", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view()}
			r.Volume.Provision = volume.Provisioning
		}, &volume.Attempt{Action: volume.Action{Kind: call.CreateVolume}, Running: true}, "mounting: creating", "", ""},
		{"being deleted, and the call runs", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view()}
			r.Volume.Provision = volume.Deleting
		}, &volume.Attempt{Action: volume.Action{Kind: call.DeleteVolume}, Running: true}, "detaching: deleting", "", ""},
		{"being deleted, and the call failed", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view()}
			r.Volume.Provision = volume.Deleting
		}, failed(call.DeleteVolume, "", 1, volume.RetryBackoff), "stuck: stuck: deleting", "deleting was begun and has not been seen to end", "volctl volume delete data -y"},
		{"mounting", pending, nil, "mounting: mounting", "", ""},
		{"mounting, failed twice", pending, failed(call.NodePublish, "a", 2, volume.RetryBackoff), "mounting: mounting", "", ""},
		{"mounting, failed for the third time", pending, failed(call.NodePublish, "a", 3, volume.RetryBackoff), "stuck: stuck: mounting", "", "volctl volume detach data a"},
		{"mounting, failed for good", pending, failed(call.NodeStage, "", 1, volume.RetryChange), "stuck: stuck: mounting", "", "volctl plugin logs p"},
		{"mounting, and the plugin is down", func(r *volume.Record, o *volume.Observed) {
			pending(r, o)
			o.Plugin = down
		}, nil, "mounting: mounting, plugin unavailable", `plugin "p" is backing off: exit status 1`, "volctl plugin status p"},
		{"mounting, and the plugin was stopped", func(r *volume.Record, o *volume.Observed) {
			pending(r, o)
			o.Plugin = down
			o.Plugin.Stopped = true
		}, nil, "mounting: mounting, plugin unavailable", "", "volctl plugin start p"},
		{"mounted", func(*volume.Record, *volume.Observed) {}, nil, "mounted: mounted, writable", "", ""},
		{"mounted for readers", func(r *volume.Record, _ *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.ReadOnly = true })
		}, nil, "mounted: mounted, read-only", "", ""},
		{"mounted, and the plugin is down", func(_ *volume.Record, o *volume.Observed) { o.Plugin = down },
			nil, "mounted: mounted, writable, plugin unavailable", `plugin "p" is backing off: exit status 1`, ""},
		{"mounted, and a late effect may come", func(r *volume.Record, _ *volume.Observed) {
			r.Node.Watches = []volume.Watch{{Path: "/t/b", Alloc: "b"}}
		}, nil, "mounted: mounted, writable", "a call of unknown outcome may still have an effect", ""},
		{"the staged mount is dead", func(_ *volume.Record, o *volume.Observed) {
			o.Staging = volume.Sight{Seen: volume.SeenDead, Identity: volume.MountIdentity{}, Detail: "transport endpoint is not connected"}
		}, nil, "degraded: degraded: the staged mount at /s is dead: transport endpoint is not connected", "", ""},
		{"the target is gone", func(_ *volume.Record, o *volume.Observed) { o.Targets = nil },
			nil, `degraded: degraded: the mount of "a" at /t/a is not there`, "", ""},
		{"the target is gone, and the plugin is down", func(_ *volume.Record, o *volume.Observed) { o.Targets, o.Plugin = nil, down },
			nil, `degraded: degraded: the mount of "a" at /t/a is not there, plugin unavailable`, "", ""},
		{"the bind is gone", func(r *volume.Record, _ *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.At, c.Bound, c.BoundMount = "/srv", volume.Present, mountID(3) })
		}, nil, `degraded: degraded: the mount of "a" at /srv is not there`, "", ""},
		{"repair keeps failing", func(_ *volume.Record, o *volume.Observed) { o.Targets = nil },
			failed(call.NodePublish, "a", 4, volume.RetryBackoff), "stuck: stuck: repairing", "", "volctl volume detach data a"},
		{"a foreign mount", func(_ *volume.Record, o *volume.Observed) {
			o.Targets["a"] = volume.Sight{Seen: volume.SeenMount, Identity: *mountID(9)}
		}, nil, "stuck: stuck: a mount that was not made by this claim is at /t/a", "", ""},
		{"the mount hangs", func(_ *volume.Record, o *volume.Observed) {
			o.Targets["a"] = volume.Sight{Seen: volume.SeenHung, Detail: "hung since 10:00"}
		}, nil, "stuck: stuck: target /t/a: hung since 10:00", "", ""},
		{"the check did not start in time", func(_ *volume.Record, o *volume.Observed) {
			o.Targets["a"] = volume.Sight{Seen: volume.SeenError, Unchecked: true, Detail: "the check did not end in time"}
		}, nil, "mounted: mounted, writable, not checked now: the host is busy", "", ""},
		{"halted", func(_ *volume.Record, o *volume.Observed) { o.Halt = "another namespace" }, nil, "stuck: stuck: the agent sends no call", "", ""},
		{"an unknown state", func(r *volume.Record, _ *volume.Observed) { r.Node.Staged = "glued" }, nil, `stuck: stuck: staged has the unknown state "glued"`, "", ""},
		{"releasing", releasing, nil, "detaching: detaching", "", ""},
		{"releasing, and the plugin is down", func(r *volume.Record, o *volume.Observed) {
			releasing(r, o)
			o.Plugin = down
		}, nil, "detaching: detaching, plugin unavailable", `plugin "p" is backing off: exit status 1`, "volctl plugin status p"},
		{"releasing, failed for the third time", releasing, failed(call.NodeUnpublish, "a", 3, volume.RetryBackoff),
			"stuck: stuck: unmounting", "", "volctl volume detach data a --without-plugin=lazy"},
		{"releasing without the plugin, busy", without(volume.ByUmount), failedHow(volume.ByUmount),
			"stuck: stuck: unmounting", "", "volctl volume detach data a --without-plugin=lazy"},
		{"releasing without the plugin, and nothing helps", without(volume.ByLazy), failedHow(volume.ByLazy),
			"stuck: stuck: unmounting", "", "volctl volume deregister data --force"},
		{"free, and calls are owed", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: down}
			r.Node.PendingCalls = pendingAfterDetach()
			r.Node.Unseen = []volume.Unseen{{Path: "/t/a", Users: []string{"process 7 (cat)"}}}
		}, nil, "free: free, pending calls (NodeUnpublishVolume, NodeUnstageVolume), plugin unavailable",
			"/t/a was unmounted lazily: processes with open files there can still use it (process 7 (cat))", "volctl plugin status p"},
		{"no claim, and still attached", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: down}
			r.Node.Attached, r.Node.NodeID = volume.Present, "n"
		}, nil, "detaching: detaching, pending calls (ControllerUnpublishVolume), plugin unavailable", `plugin "p" is backing off: exit status 1`, ""},
		{"the same storage is owed for", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view(), Leftover: "old is undone first"}
		}, nil, "detaching: detaching: old is undone first", "", ""},
		{"an owed call fails", func(r *volume.Record, o *volume.Observed) {
			*r, *o = volume.Record{Volume: r.Volume}, volume.Observed{Plugin: view()}
			r.Node.PendingCalls = pendingAfterDetach()
		}, &volume.Attempt{Action: volume.Action{Kind: call.NodeUnstage, Pending: true}, Tries: 3, Err: &volume.CallError{Retry: volume.RetryBackoff}},
			"stuck: stuck: NodeUnstageVolume", "", "volctl plugin logs p"},
	} {
		r, o := mounted(t), asMounted()
		tt.change(&r, &o)
		e := volume.Explain(r, o, tt.at)
		if got := fmt.Sprintf("%s: %s", e.State, e.Summary); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
		if tt.note != "" && (len(e.Notes) == 0 || e.Notes[0] != tt.note) {
			t.Errorf("%s: notes %q, want %q", tt.name, e.Notes, tt.note)
		}
		if !e.Else.Empty() && e.Else.Equal(e.Fix) {
			t.Errorf("%s: both commands are %q", tt.name, suggest.Words(e.Fix))
		}
		if tt.fix != "" && suggest.Words(e.Fix) != tt.fix {
			t.Errorf("%s: fix %q, want %q", tt.name, suggest.Words(e.Fix), tt.fix)
		}
	}
}

func must(r volume.Record, err error) volume.Record {
	if err != nil {
		panic(err)
	}
	return r
}

func TestDroppable(t *testing.T) {
	r := admit(t, mounted(t), writer("b"))
	if err := volume.Droppable(r); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `is claimed by "a" (mounted), which is alive`) || hintOf(err) != "volctl volume detach data a" {
		t.Errorf("with two live claims: %v, hint %q", err, hintOf(err))
	}
	r = must(volume.Detach(r, "a"))
	if err := volume.Droppable(r); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `"b" (pending)`) {
		t.Errorf("with one live claim: %v", err)
	}
	r = must(volume.Detach(r, "b"))
	for _, r := range []volume.Record{r, offering(call.SingleNodeWriter)} {
		if err := volume.Droppable(r); err != nil {
			t.Errorf("with no live claim: %v", err)
		}
	}
}
