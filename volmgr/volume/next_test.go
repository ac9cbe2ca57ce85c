package volume_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// view returns a ready plugin with ControllerPublishVolume and staging.
func view() plugin.View {
	return plugin.View{Known: true, Ready: true, State: "ready", Info: plugin.Info{
		ID: "p", NodeID: "n", Caps: plugin.Caps{Attach: true, Stage: true},
	}}
}

// asMounted returns an observation in which all mounts of the record from mounted are in place.
func asMounted() volume.Observed {
	return volume.Observed{
		Plugin:  view(),
		Staging: volume.Sight{Seen: volume.SeenMount, Identity: *mountID(1)},
		Targets: map[string]volume.Sight{"a": {Seen: volume.SeenMount, Identity: *mountID(2)}},
		Binds:   map[string]volume.Sight{},
	}
}

// TestNext checks single decisions, including some in states that TestExplore cannot reach.
func TestNext(t *testing.T) {
	foreign := volume.Sight{Seen: volume.SeenMount, Identity: *mountID(99)}
	dead := volume.Sight{Seen: volume.SeenDead, Identity: *mountID(1), Detail: "ENOTCONN"}
	hung := volume.Sight{Seen: volume.SeenHung, Detail: "hung since 10:00"}
	unread := volume.Sight{Seen: volume.SeenError, Detail: "EPERM"}
	for _, tt := range []struct {
		name   string
		change func(*volume.Record, *volume.Observed)
		want   string
	}{
		{"all is well", func(*volume.Record, *volume.Observed) {}, "settled"},
		{"all is well, the plugin is down", func(_ *volume.Record, o *volume.Observed) { o.Plugin = plugin.View{State: "crashed"} }, "settled"},
		{"halted", func(_ *volume.Record, o *volume.Observed) { o.Halt = "another namespace" }, "wait halted: another namespace"},
		{"a foreign mount at the staging path", func(_ *volume.Record, o *volume.Observed) { o.Staging = foreign }, "wait foreign: a mount that was not made by this volume's staging is at /s"},
		{"a foreign mount at the target", func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = foreign }, "wait foreign: a mount that was not made by this claim is at /t/a"},
		{"a foreign mount before anything is staged", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Absent, nil, foreign
		}, "wait foreign: a mount that was not made by this volume's staging is at /s"},
		{"a dead foreign mount before anything is staged", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Absent, nil, dead
		}, "wait foreign: a mount that was not made by this volume's staging is at /s"},
		{"a dead foreign mount before anything is published", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Published, c.Mount = volume.Absent, nil })
			o.Targets["a"] = dead
		}, "wait foreign: a mount that was not made by this claim is at /t/a"},
		{"the staged mount hangs", func(_ *volume.Record, o *volume.Observed) { o.Staging = hung }, "wait hung: staging path /s: hung since 10:00"},
		{"the target cannot be looked at", func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = unread }, "wait hung: target /t/a: EPERM"},
		{"the staged mount is dead", func(_ *volume.Record, o *volume.Observed) { o.Staging = dead }, "doubt a /t/a"},
		{"the staged mount is dead, on record too", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Published, c.Mount = volume.Failed, nil })
			o.Staging = dead
		}, "NodeUnpublishVolume a /t/a"},
		{"the target is dead", func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = dead }, "doubt a /t/a"},
		{"the staged mount is gone", func(_ *volume.Record, o *volume.Observed) { o.Staging = volume.Sight{} }, "doubt  /s"},
		{"the target is gone", func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = volume.Sight{} }, "doubt a /t/a"},
		{"the bind is gone", func(r *volume.Record, _ *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.At, c.Bound, c.BoundMount = "/srv", volume.Present, mountID(3) })
		}, "doubt a /srv"},
		{"the bind is dead", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.At, c.Bound, c.BoundMount = "/srv", volume.Present, &dead.Identity })
			o.Binds["a"] = dead
		}, "doubt a /srv"},
		{"the bind is dead, on record too", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.At, c.Bound = "/srv", volume.Failed })
			o.Binds["a"] = dead
		}, "unbind a /srv"},
		{"the bind is gone, and the claim lives by it", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { lives(c, volume.Present) })
		}, `wait owner: /srv was unmounted, and the claim of "a" ends with that`},
		{"the same, and the staged mount is dead", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { lives(c, volume.Present) })
			o.Staging, o.Targets["a"] = dead, dead
		}, `wait owner: /srv was unmounted, and the claim of "a" ends with that`},
		{"all is dead, and the claim lives by its mount", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { lives(c, volume.Present) })
			o.Staging, o.Targets["a"], o.Binds["a"] = dead, dead, dead
		}, "doubt a /srv"},
		{"the agent makes the mount anew that the claim lives by", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { lives(c, volume.Unknown) })
		}, "bind a /srv"},
		{"something else is at the bind", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.At, c.Bound, c.BoundMount = "/srv", volume.Present, mountID(3) })
			o.Binds["a"] = foreign
		}, "wait foreign: another mount is at /srv"},
		{"the plugin is not configured", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Unknown, nil, volume.Sight{}
			o.Plugin.Known, o.Plugin.Ready = false, false
		}, `wait plugin: plugin "p" is not configured`},
		{"the plugin backs off", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Unknown, nil, volume.Sight{}
			o.Plugin.Ready, o.Plugin.State, o.Plugin.Reason = false, "backing off", "exit status 1"
		}, `wait plugin: plugin "p" is backing off: exit status 1`},
		{"the plugin never said which node this is", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Absent, nil, volume.Sight{}
			r.Node.Attached, r.Node.NodeID, o.Plugin.Info.NodeID = volume.Absent, "", ""
		}, `wait plugin: plugin "p" does not say which node this is`},
		{"the node id was not known at admission", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Absent, nil, volume.Sight{}
			r.Node.Attached, r.Node.NodeID = volume.Absent, ""
		}, "plan  "},
		{"the step is parked", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, r.Node.Mount, o.Staging = volume.Unknown, nil, volume.Sight{}
			o.Parked = map[string]bool{"NodeStageVolume/": true}
		}, "wait backoff: NodeStageVolume failed and is not due yet"},
		{"the host goes down", func(_ *volume.Record, o *volume.Observed) { o.Down = true }, "doubt a /t/a"},
		{"the host goes down, which is on record", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Published, c.Mount = volume.Failed, nil })
			o.Down = true
		}, "NodeUnpublishVolume a /t/a"},
		{"the host goes down: the user's own mount goes first", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.At, c.Bound, c.BoundMount = "/srv", volume.Present, mountID(3) })
			o.Binds["a"] = volume.Sight{Seen: volume.SeenMount, Identity: *mountID(3)}
			o.Down = true
		}, "doubt a /srv"},
		{"the host goes down: the staging comes last", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Published, c.Mount = volume.Absent, nil })
			o.Down = true
		}, "doubt  /s"},
		{"the host goes down: nothing is left but the attachment", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Published, c.Mount = volume.Absent, nil })
			r.Node.Staged, r.Node.Mount, o.Staging, o.Down = volume.Absent, nil, volume.Sight{}, true
		}, "wait down: this host is going down"},
		{"the host goes down: what nobody wants is not detached", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Wanted, c.Published, c.Mount = false, volume.Absent, nil })
			r.Node.Staged, r.Node.Mount, o.Staging, o.Down = volume.Absent, nil, volume.Sight{}, true
		}, "wait down: this host is going down"},
		{"the host goes down: nothing is made for a claim that waits", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil })
			r.Node.Attached, r.Node.Staged, r.Node.Mount, o.Staging, o.Down = volume.Absent, volume.Absent, nil, volume.Sight{}, true
		}, "wait down: this host is going down"},
		{"the host goes down, and the plugin with it", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Published, c.Mount = volume.Failed, nil })
			o.Down, o.Plugin.Ready, o.Plugin.State = true, false, "gone"
		}, `wait plugin: plugin "p" is gone`},
		{"a late effect may come", func(r *volume.Record, _ *volume.Observed) {
			r.Node.Watches = []volume.Watch{{Path: "/t/b", Alloc: "b"}}
		},
			"wait watch: a call of unknown outcome may still have an effect"},
		{"a late effect did not come", func(r *volume.Record, o *volume.Observed) {
			r.Node.Watches, o.WatchOver = []volume.Watch{{Path: "/t/b", Alloc: "b"}}, true
		}, "end-watch  "},
		{"a late effect hangs", func(r *volume.Record, o *volume.Observed) {
			r.Node.Watches, o.WatchOver = []volume.Watch{{Path: "/t/b", Alloc: "b"}}, true
			o.Watched = map[string]volume.Sight{"/t/b": hung}
		}, "wait hung: /t/b: hung since 10:00"},
		{"released without the plugin, which is down", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) {
				c.Wanted, c.Without, c.At, c.Bound = false, volume.ByLazy, "/srv", volume.Present
			})
			o.Plugin.Ready = false
		}, "unbind a /srv lazy"},
		{"the bind is gone", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Wanted, c.Without = false, volume.ByLazy })
			o.Plugin.Ready = false
		}, "unmount a /t/a lazy"},
		{"the target too", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Wanted, c.Without, c.Published = false, volume.ByForce, volume.Absent })
			o.Plugin.Ready = false
		}, "unmount  /s force"},
		{"the staging too: an attachment stays", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Wanted, c.Without, c.Published = false, volume.ByForce, volume.Absent })
			r.Node.Staged, o.Plugin.Ready = volume.Absent, false
		}, "free a "},
		{"calls are owed", func(r *volume.Record, o *volume.Observed) {
			r.Claims, r.Node.Staged, r.Node.PendingCalls, o.Plugin.Ready = nil, volume.Absent, pendingAfterDetach(), false
			o.Plugin.State = "gone"
		}, `wait plugin: plugin "p" is gone`},
		{"calls are owed, and the plugin is back", func(r *volume.Record, _ *volume.Observed) {
			r.Claims, r.Node.Staged, r.Node.PendingCalls = nil, volume.Absent, pendingAfterDetach()
		}, "NodeUnpublishVolume a /t/a owed"},
		{"one of them is paid", func(r *volume.Record, _ *volume.Observed) {
			r.Claims, r.Node.Staged, r.Node.PendingCalls = nil, volume.Absent, pendingAfterDetach()[1:]
		}, "NodeUnstageVolume  /s owed"},
		{"the other waits for the one", func(r *volume.Record, o *volume.Observed) {
			r.Claims, r.Node.Staged, r.Node.PendingCalls = nil, volume.Absent, pendingAfterDetach()
			o.Parked = map[string]bool{"NodeUnpublishVolume/a": true}
		}, "wait backoff: NodeUnpublishVolume failed and is not due yet"},
		{"an unknown call is owed", func(r *volume.Record, _ *volume.Observed) {
			r.Node.PendingCalls = []volume.PendingCall{{Kind: "NodePray"}}
		}, `wait invalid: the pending call "NodePray" is unknown`},
		{"an unknown way out", func(r *volume.Record, _ *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.Without = "fire" })
		}, `wait invalid: claim of "a" is detached in the unknown way "fire"`},
		{"a debt waits for its plugin, even with what the host could do", func(r *volume.Record, o *volume.Observed) {
			edit(r, func(c *volume.Claim) {
				c.Wanted, c.Without, c.At, c.Bound = false, volume.ByLazy, "/srv", volume.Present
			})
			*r, o.Plugin.Ready, o.Plugin.State = volume.LeftoverOf(*r), false, "gone"
		}, `wait plugin: plugin "p" is gone`},
		{"the same storage is owed for", func(r *volume.Record, o *volume.Observed) {
			r.Node.Staged, o.Leftover = volume.Absent, "volume \"old\" left something"
		}, `wait debt: volume "old" left something`},
		{"an unknown side", func(r *volume.Record, _ *volume.Observed) { r.Node.Staged = "glued" }, `wait invalid: staged has the unknown state "glued"`},
		{"an unknown claim state", func(r *volume.Record, _ *volume.Observed) {
			edit(r, func(c *volume.Claim) { c.State = "lost" })
		}, `wait invalid: claim of "a" has the unknown state "lost"`},
	} {
		r, o := mounted(t), asMounted()
		r.Volume.PluginID = "p"
		tt.change(&r, &o)
		if got := words(volume.Next(r, o)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// pendingAfterDetach returns the pending calls of a volume whose last claim was detached without
// the plugin.
func pendingAfterDetach() []volume.PendingCall {
	return []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/t/a", Alloc: "a"}, {Kind: call.NodeUnstage, Path: "/s"}}
}

// edit changes the record's claim of alloc "a".
func edit(r *volume.Record, change func(*volume.Claim)) {
	c := r.Claims["a"]
	change(&c)
	r.Claims = map[string]volume.Claim{"a": c}
}

// lives makes the mount at /srv the owner of the claim, with the given state of the bind mount.
func lives(c *volume.Claim, bound volume.Side) {
	c.At, c.Bound, c.BoundMount, c.Owner = "/srv", bound, mountID(3), volume.Owner{Kind: volume.OwnerMount, PID: 7}
	if bound != volume.Present {
		c.BoundMount = nil
	}
}

// words describes a decision in a short text.
func words(a volume.Action) string {
	switch a.Kind {
	case volume.Wait:
		return fmt.Sprintf("wait %s: %s", a.Cause, a.Reason)
	case volume.Settled:
		return "settled"
	default:
		s := fmt.Sprintf("%s %s %s", a.Kind, a.Alloc, a.Path)
		if a.How != "" {
			s += " " + string(a.How)
		}
		if a.Pending {
			s += " owed"
		}
		return s
	}
}

// TestUnimplementedUndo checks calls that undo a side, if the plugin answers "Unimplemented". This
// answer counts as success only for a side that may never have been made.
func TestUnimplementedUndo(t *testing.T) {
	out := volume.Outcome{Err: &volume.CallError{Step: "x", Code: "Unimplemented", Retry: volume.RetryNever}}
	for was, want := range map[volume.Side]volume.Side{volume.Unknown: volume.Absent, volume.Present: volume.Failed, volume.Failed: volume.Failed} {
		r := mounted(t)
		r.Node.Staged, r.Node.Attached = was, was
		r, _ = volume.Apply(r, volume.Action{Kind: call.NodeUnstage}, out)
		r, _ = volume.Apply(r, volume.Action{Kind: call.ControllerUnpublish}, out)
		if r.Node.Staged != want || r.Node.Attached != want {
			t.Errorf("%s became staged %s, attached %s, want %s", was, r.Node.Staged, r.Node.Attached, want)
		}
	}
}

func TestApplyEvents(t *testing.T) {
	r := mounted(t)
	failed := volume.Outcome{Err: &volume.CallError{Step: "NodeUnpublishVolume", Code: "Internal", Message: "target is busy"}}
	for _, tt := range []struct {
		a    volume.Action
		out  volume.Outcome
		want string
	}{
		{volume.Action{Kind: call.NodeUnpublish, Alloc: "a", Path: "/t/a"}, failed, "[step-failed a NodeUnpublishVolume: Internal: target is busy]"},
		{volume.Action{Kind: call.NodeUnpublish, Alloc: "a", Path: "/t/a"}, volume.Outcome{Warning: "gone already"}, "[warning a NodeUnpublishVolume: gone already unpublished a unpublished from /t/a]"},
		{volume.Action{Kind: call.NodeStage, Path: "/s"}, volume.Outcome{}, "[staged  staged at /s]"},
		{volume.Action{Kind: volume.Plan}, volume.Outcome{}, "[]"},
	} {
		_, evs := volume.Apply(r, tt.a, tt.out)
		var got []string
		for _, e := range evs {
			if e.Volume != "data" || e.Plugin != "p" {
				t.Errorf("%s: an event of %q, %q", tt.a.Kind, e.Volume, e.Plugin)
			}
			got = append(got, string(e.Type), e.Alloc, e.Message)
		}
		if s := fmt.Sprint(got); s != tt.want {
			t.Errorf("%s: %s, want %s", tt.a.Kind, s, tt.want)
		}
	}
	released, err := volume.Detach(r, "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []call.Method{call.NodeUnpublish, call.NodeUnstage, volume.Prove, call.ControllerUnpublish, volume.Free} {
		var evs []volume.Event
		released, evs = volume.Apply(released, volume.Action{Kind: k, Alloc: "a", Path: released.Claims["a"].Target}, volume.Outcome{})
		if want := map[call.Method]volume.EventType{volume.Prove: "claim-node-detached", volume.Free: "claim-detached"}[k]; want != "" && (len(evs) != 1 || evs[0].Type != want) {
			t.Errorf("%s: events %+v, want %s", k, evs, want)
		}
	}
	if released.Held() {
		t.Errorf("still held: %+v", released)
	}
}

// TestTotal checks that Next, Apply and Explain accept any record and any observation. If the
// record contains an unknown state, the volume must not change. No step may change the old record.
func TestTotal(t *testing.T) {
	for range 100 {
		rapid.Check(t, total)
	}
}

func total(t *rapid.T) {
	r, o := anyRecord().Draw(t, "record"), anyObserved().Draw(t, "observed")
	before := fmt.Sprintf("%+v", r)
	a := volume.Next(r, o)
	if known := recognised(r); !known && o.Halt == "" && (a.Kind != volume.Wait || a.Cause != volume.CauseInvalid) {
		t.Fatalf("an unrecognised state leads to %+v", a)
	}
	if a.Kind == volume.Wait && (a.Reason == "" || a.Cause == "") {
		t.Fatalf("a wait without a reason: %+v", a)
	}
	if a.RPC() && !o.Plugin.Ready {
		t.Fatalf("%s goes to a plugin that is not ready", a.Kind)
	}
	if o.Parked[a.Key()] {
		t.Fatalf("%s is parked", a.Key())
	}
	if less := volume.Next(r, seen(volume.PathsToObserve(r), o)); less != a {
		t.Fatalf("%+v, and %+v when only what is to be seen is shown", a, less)
	}
	if bad := misled(r, o); bad != "" {
		t.Fatal(bad)
	}
	if rapid.Bool().Draw(t, "another step") {
		a = volume.Action{
			Kind:  rapid.SampledFrom(append(kinds(), "no such step")).Draw(t, "kind"),
			Alloc: alloc().Draw(t, "alloc"), Path: path().Draw(t, "path"),
		}
	}
	next, _ := volume.Apply(r, a, anyOutcome().Draw(t, "outcome"))
	volume.Urgency(r, next)
	volume.Loaded(r, volume.Crashed, false)
	volume.Loaded(r, volume.Rebooted, false)
	volume.LeftoverOf(r)
	volume.NextBoot(r)
	_ = volume.Droppable(r) // the result does not matter, but the call must not panic
	at := &volume.Attempt{Action: a, Err: anyOutcome().Draw(t, "last").Err, Tries: rapid.IntRange(0, 5).Draw(t, "tries")}
	for _, at := range []*volume.Attempt{nil, at} {
		if e := volume.Explain(r, o, at); e.State == "" || e.Summary == "" {
			t.Fatalf("explained as %+v", e)
		}
	}
	if _, err := volume.Admit(r, volume.Request{Alloc: alloc().Draw(t, "asking"), MountFlags: []string{"x"}}, o.Plugin.Info, now); err == nil && !recognised(r) {
		t.Fatal("a claim is admitted to an unrecognised state")
	}
	if after := fmt.Sprintf("%+v", r); after != before {
		t.Fatalf("the record was written through:\n%s\n%s", before, after)
	}
}

// seen returns the part of the observation that concerns the paths of the record.
func seen(r volume.Record, o volume.Observed) volume.Observed {
	all := o
	o.Targets, o.Binds = map[string]volume.Sight{}, map[string]volume.Sight{}
	for alloc := range r.Claims {
		o.Targets[alloc], o.Binds[alloc] = all.Targets[alloc], all.Binds[alloc]
	}
	if r.Node.StagingPath == "" {
		o.Staging = volume.Sight{}
	}
	return o
}

func recognised(r volume.Record) bool {
	known := r.Node.Hold.State.Valid() && r.Node.Attached.Valid() && r.Node.Staged.Valid()
	for _, c := range r.Claims {
		known = known && c.Published.Valid() && c.Bound.Valid() && !strings.HasPrefix(string(c.State), "?") && c.State != ""
	}
	return known
}

func kinds() []call.Method {
	return []call.Method{
		call.ControllerPublish, call.NodeStage, call.NodePublish, call.NodeUnpublish, call.NodeUnstage,
		call.ControllerUnpublish, volume.Plan, volume.Doubt, volume.Bind, volume.Unbind, volume.Prove, volume.EndWatch,
		volume.Unmount, volume.Free, volume.Wait, volume.Settled, call.ControllerExpand, call.NodeExpand, volume.Take,
		volume.Acquire, volume.Confirm, volume.GiveUp,
	}
}

func alloc() *rapid.Generator[string] { return rapid.SampledFrom([]string{"", "a", "b", "c"}) }

func path() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "/s", "/t/a", "/t/b", "/srv"})
}

func anySide() *rapid.Generator[volume.Side] {
	return rapid.SampledFrom([]volume.Side{volume.Absent, volume.Absent, volume.Unknown, volume.Failed, volume.Present, volume.Present, volume.Present, "?"})
}

func anyMount() *rapid.Generator[*volume.MountIdentity] {
	return rapid.SampledFrom([]*volume.MountIdentity{nil, mountID(1), mountID(2)})
}

func anyRecord() *rapid.Generator[volume.Record] {
	return rapid.Custom(func(t *rapid.T) volume.Record {
		flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
		r := volume.Record{Volume: volume.Volume{ID: "data", PluginID: "p"}}
		r.Volume.Provision = rapid.SampledFrom([]volume.Provision{"", "", volume.Provisioning, "?"}).Draw(t, "provision")
		r.Node = volume.NodeSide{
			Uses: volume.Uses{Attach: flag("uses attach"), Stage: flag("uses stage")}, NodeID: rapid.SampledFrom([]string{"", "n"}).Draw(t, "node id"),
			Attached: anySide().Draw(t, "attached"), Proven: flag("proven"),
			Staged: anySide().Draw(t, "staged"), StagingPath: "/s", Mount: anyMount().Draw(t, "staged mount"),
		}
		if r.Volume.Shared = flag("shared"); r.Volume.Shared {
			r.Node.Hold = volume.Hold{State: anySide().Draw(t, "hold"), Operation: rapid.SampledFrom([]string{"", "op"}).Draw(t, "operation"), Confirmed: flag("confirmed"), Lost: flag("lost")}
		}
		if flag("mode") {
			r.Node.Mode = &volume.Mode{Capability: call.Capability{Access: call.SingleNodeMultiWriter}}
		}
		for range rapid.IntRange(0, 2).Draw(t, "watches") {
			r.Node.Watches = append(r.Node.Watches, volume.Watch{Path: path().Draw(t, "watched"), Alloc: alloc().Draw(t, "whose")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "owed calls") {
			r.Node.PendingCalls = append(r.Node.PendingCalls, rapid.SampledFrom(pendingAfterDetach()).Draw(t, "owed"))
		}
		r.Leftover = flag("debt")
		r.Volume.Expansion = volume.Expansion{
			Want: rapid.SampledFrom([]int64{0, 0, 16}).Draw(t, "want"), Offline: flag("offline"), Node: rapid.SampledFrom([]int64{0, 0, 16}).Draw(t, "node"),
			Refused: volume.Refusal{Step: rapid.SampledFrom([]call.Method{"", call.NodeExpand}).Draw(t, "refused")},
		}
		for range rapid.IntRange(0, 3).Draw(t, "claims") {
			c := volume.Claim{
				Alloc: alloc().Draw(t, "claimant"), Seq: rapid.Uint64Range(0, 3).Draw(t, "seq"), Wanted: flag("wanted"),
				Terms: volume.Terms{ReadOnly: flag("read-only"), At: path().Draw(t, "at")},
				State: rapid.SampledFrom([]volume.ClaimState{volume.Pending, volume.Mounted, volume.Mounted, volume.Unpublishing, volume.NodeDetached, volume.ControllerDetached, "", "?"}).Draw(t, "state"),
				Mount: anyMount().Draw(t, "mount"), Published: anySide().Draw(t, "published"), Bound: anySide().Draw(t, "bound"),
				Target:  path().Draw(t, "target"),
				Without: rapid.SampledFrom([]volume.Without{"", "", "", volume.ByUmount, volume.ByLazy}).Draw(t, "without"),
			}
			if r.Claims == nil {
				r.Claims = map[string]volume.Claim{}
			}
			r.Claims[c.Alloc] = c
		}
		return r
	})
}

func anySight() *rapid.Generator[volume.Sight] {
	return rapid.Custom(func(t *rapid.T) volume.Sight {
		s := volume.Sight{Seen: rapid.SampledFrom([]volume.Seen{volume.SeenNothing, volume.SeenMount, volume.SeenMount, volume.SeenDead, volume.SeenHung, volume.SeenError, "?"}).Draw(t, "seen")}
		if m := anyMount().Draw(t, "mount"); m != nil {
			s.Identity = *m
		}
		return s
	})
}

func anyObserved() *rapid.Generator[volume.Observed] {
	return rapid.Custom(func(t *rapid.T) volume.Observed {
		o := volume.Observed{Plugin: view(), Staging: anySight().Draw(t, "staging"), WatchOver: rapid.Bool().Draw(t, "over")}
		o.Down = rapid.Bool().Draw(t, "down")
		o.Cluster.Away = rapid.SampledFrom([]string{"", "", "away"}).Draw(t, "away")
		o.Halt = rapid.SampledFrom([]string{"", "", "", "", "halted"}).Draw(t, "halt")
		o.Plugin.Ready = rapid.Bool().Draw(t, "ready")
		o.Plugin.Info.Caps = plugin.Caps{Attach: rapid.Bool().Draw(t, "attach"), Stage: rapid.Bool().Draw(t, "stage")}
		sights := func(name string, key *rapid.Generator[string]) map[string]volume.Sight {
			return rapid.MapOfN(key, anySight(), 0, 3).Draw(t, name)
		}
		o.Targets, o.Binds, o.Watched = sights("targets", alloc()), sights("binds", alloc()), sights("watched", path())
		o.Parked = map[string]bool{}
		for _, k := range kinds() {
			if a := (volume.Action{Kind: k, Alloc: alloc().Draw(t, "parked for")}); rapid.IntRange(0, 9).Draw(t, "parked") == 0 && k != volume.Wait && k != volume.Settled && k != volume.EndWatch {
				o.Parked[a.Key()] = true
			}
		}
		return o
	})
}

func anyOutcome() *rapid.Generator[volume.Outcome] {
	return rapid.Custom(func(t *rapid.T) volume.Outcome {
		out := volume.Outcome{Mount: anyMount().Draw(t, "mount"), StageSuspect: rapid.Bool().Draw(t, "suspect")}
		if code := rapid.SampledFrom([]string{"", "Internal", "Unimplemented", "NotFound"}).Draw(t, "code"); code != "" {
			out.Err = &volume.CallError{Step: "x", Code: code, Retry: rapid.SampledFrom([]volume.Retry{volume.RetryBackoff, volume.RetryChange, volume.RetryNever}).Draw(t, "retry")}
		}
		return out
	})
}

// TestOrdered checks that Ordered returns the claims in the order of their admission.
func TestOrdered(t *testing.T) {
	r := volume.Record{Claims: map[string]volume.Claim{"z": {Alloc: "z", Seq: 1}, "a": {Alloc: "a", Seq: 3}, "m": {Alloc: "m", Seq: 2}}}
	var got []string
	for _, c := range r.Ordered() {
		got = append(got, c.Alloc)
	}
	if want := []string{"z", "m", "a"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
