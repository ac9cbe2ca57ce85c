package volume_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

const away = "etcd does not answer, since 10:00"

// interrupted is the reason for a wait after an interrupted change of the scope.
const interrupted = "the change of its scope was interrupted, and the cluster has not answered yet which scope the volume has"

// sharedMounted returns a shared volume with one claim, all its sides and a confirmed hold.
func sharedMounted(t *testing.T) volume.Record {
	t.Helper()
	r := mounted(t)
	r.Volume.Shared, r.Volume.PluginID = true, "p"
	r.Node.Hold = volume.Hold{
		State: volume.Present, Operation: "op", Token: volume.Token{Epoch: 1, Revision: 7}, Access: call.SingleNodeMultiWriter, Since: now, Confirmed: true,
	}
	return r
}

// unmounted removes the mounts of the claim of alloc "a" from the record and the observation. The
// volume remains attached.
func unmounted(r *volume.Record, o *volume.Observed) {
	edit(r, func(c *volume.Claim) { c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil })
	r.Node.Staged, r.Node.Mount, o.Staging, o.Targets = volume.Absent, nil, volume.Sight{}, map[string]volume.Sight{}
}

// released is like unmounted, and the claim is no longer wanted.
func released(r *volume.Record, o *volume.Observed) {
	unmounted(r, o)
	edit(r, func(c *volume.Claim) { c.Wanted, c.State = false, volume.Unpublishing })
}

// TestNextHold checks single decisions about the hold of a shared volume.
func TestNextHold(t *testing.T) {
	type change = func(*volume.Record, *volume.Observed)
	for _, tt := range []struct {
		name   string
		change change
		want   string
	}{
		{"all is well", func(*volume.Record, *volume.Observed) {}, "settled"},
		{"all is well, and the cluster is away", func(_ *volume.Record, o *volume.Observed) { o.Cluster.Away = away }, "settled"},
		{"no hold yet", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State = volume.Absent, volume.Absent
		}, "acquire-hold  "},
		{"no hold yet, and the cluster is away", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State, o.Cluster.Away = volume.Absent, volume.Absent, away
		}, "wait cluster: " + away},
		{"the hold is unknown", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Hold.State = volume.Unknown
		}, "acquire-hold  "},
		{"a claim finds a hold that is being given up", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State = volume.Absent, volume.Failed
		}, "give-up-hold  "},
		{"held, not attached", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached = volume.Absent
		}, "ControllerPublishVolume  "},
		{"no hold yet, and no host has a controller", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State = volume.Absent, volume.Absent
			o.Plugin.Apart = &plugin.Apart{Node: plugin.Service{Ready: true}, Controller: plugin.Service{Unasked: true, Lack: "no controller"}}
		}, "wait plugin: no controller"},
		{"no hold yet, and the attachment is not due", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State = volume.Absent, volume.Absent
			o.Parked = map[string]bool{volume.Action{Kind: call.ControllerPublish}.Key(): true}
		}, "wait backoff: ControllerPublishVolume failed and is not due yet"},
		{"held, not attached, and no host has a controller", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached = volume.Absent
			o.Plugin.Apart = &plugin.Apart{Node: plugin.Service{Ready: true}, Controller: plugin.Service{Unasked: true, Lack: "no controller"}}
		}, "prove  "},
		{"mounted, and no host has a controller", func(_ *volume.Record, o *volume.Observed) {
			o.Plugin.Apart = &plugin.Apart{Node: plugin.Service{Ready: true}, Controller: plugin.Service{Unasked: true, Lack: "no controller"}}
		}, "settled"},
		{"held, not attached, and the cluster is away", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, o.Cluster.Away = volume.Absent, away
		}, "wait cluster: " + away},
		{"attached, not confirmed", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Hold.Confirmed = false
		}, "confirm-hold  "},
		{"attached, not confirmed, and an earlier attachment may still arrive", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Hold.Confirmed, r.Node.Watches = false, []volume.Watch{{Attachment: true}}
		}, "wait watch: an earlier ControllerPublishVolume of unknown outcome may still arrive; the volume is mounted after that"},
		{"the change of its scope was interrupted, and it is not attached", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Volume.Shared, r.Node.Hold, r.Rescoping, r.Node.Attached = false, volume.Hold{}, true, volume.Absent
		}, "wait cluster: " + interrupted},
		{"the change of its scope was interrupted, and it is attached", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Volume.Shared, r.Node.Hold, r.Rescoping = false, volume.Hold{}, true
		}, "wait cluster: " + interrupted},
		{"the change of its scope was interrupted, and its claim is detached: local steps go first", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Volume.Shared, r.Node.Hold, r.Rescoping = false, volume.Hold{}, true
		}, "prove  "},
		{"confirmed", unmounted, "NodeStageVolume  /s"},
		{"confirmed, and the cluster is away", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			o.Cluster.Away = away
		}, "NodeStageVolume  /s"},
		{"released: the proof comes first", released, "prove  "},
		{"released, and the cluster is away: the claim ends", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			o.Cluster.Away = away
		}, "free a "},
		{"no claim, and the cluster is away: the attachment and the hold stay", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Claims, o.Cluster.Away = nil, away
		}, "wait cluster: " + away},
		{"no claim, and the cluster is back", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Claims = nil
		}, "prove  "},
		{"detached: the hold is marked before it is given up", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Node.Attached, r.Node.Proven = volume.Absent, true
		}, "prove  "},
		{"detached and marked", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Node.Attached, r.Node.Proven, r.Node.Hold.State = volume.Absent, true, volume.Failed
		}, "give-up-hold  "},
		{"marked before a restart: the proof is made again", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Node.Attached, r.Node.Hold.State = volume.Absent, volume.Failed
		}, "prove  "},
		{"marked, and an attachment may come late", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Node.Attached, r.Node.Proven, r.Node.Hold.State = volume.Absent, true, volume.Failed
			r.Node.Watches = []volume.Watch{{Attachment: true}}
		}, "wait watch: a call of unknown outcome may still attach or mount the volume; the host keeps its hold until then"},
		{"lost: the mounts are undone", func(r *volume.Record, _ *volume.Observed) { *r, _ = volume.LoseHold(*r) }, "NodeUnpublishVolume a /t/a"},
		{"lost and unmounted: a user may remain", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			*r, _ = volume.LoseHold(*r)
		}, "prove  "},
		{"lost, unmounted and proven, and the cluster is away", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			*r, _ = volume.LoseHold(*r)
			r.Node.Proven = true
		}, "give-up-hold  "},
		{"an expansion needs the cluster", func(r *volume.Record, o *volume.Observed) {
			r.Volume.Expansion.Want, o.Cluster.Away = 16, away
		}, "wait cluster: " + away},
		{"a volume of this host needs no cluster", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Volume.Shared, r.Node.Hold, r.Node.Proven, o.Cluster.Away = false, volume.Hold{}, true, away
		}, "prove  "},
	} {
		r, o := sharedMounted(t), asMounted()
		tt.change(&r, &o)
		if got := words(volume.Next(r, o)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestApplyHold checks the state of the hold and of the attachment after a step.
func TestApplyHold(t *testing.T) {
	lost := &volume.CallError{Code: "Unavailable"}
	held := &volume.CallError{Code: volume.CodeHeld, Answered: true}
	token := volume.Token{Epoch: 1, Revision: 7}
	for _, tt := range []struct {
		name     string
		state    volume.Side
		kind     call.Method
		out      volume.Outcome
		want     volume.Side
		attached volume.Side
	}{
		{"refused", volume.Absent, volume.Acquire, volume.Outcome{Err: held}, volume.Absent, volume.Present},
		{"refused after a lost answer", volume.Unknown, volume.Acquire, volume.Outcome{Err: held}, volume.Unknown, volume.Present},
		{"lost answer", volume.Absent, volume.Acquire, volume.Outcome{Err: lost}, volume.Unknown, volume.Present},
		{"not sent", volume.Absent, volume.Acquire, volume.Outcome{Err: lost, Unsent: true}, volume.Absent, volume.Present},
		{"verified", volume.Unknown, volume.Acquire, volume.Outcome{Token: token}, volume.Present, volume.Present},
		{"another hold", volume.Unknown, volume.Acquire, volume.Outcome{Token: volume.Token{Epoch: 1, Revision: 9}}, volume.Present, volume.Unknown},
		{"the attachment was taken over", volume.Present, volume.Confirm, volume.Outcome{Err: held}, volume.Present, volume.Unknown},
		{"no answer about the attachment", volume.Present, volume.Confirm, volume.Outcome{Err: lost}, volume.Present, volume.Present},
		{"not given up", volume.Failed, volume.GiveUp, volume.Outcome{Err: lost}, volume.Failed, volume.Present},
		{"given up", volume.Failed, volume.GiveUp, volume.Outcome{}, volume.Absent, volume.Present},
	} {
		r := sharedMounted(t)
		r.Node.Hold.State, r.Node.Hold.Confirmed = tt.state, false
		r, _ = volume.Apply(r, volume.Action{Kind: tt.kind}, tt.out)
		if n := r.Node; n.Hold.State != tt.want || n.Attached != tt.attached || n.Hold.Operation != "op" {
			t.Errorf("%s: attached %s, hold %+v", tt.name, n.Attached, n.Hold)
		}
	}

	during, _ := volume.LoseHold(sharedMounted(t))
	for _, k := range []call.Method{volume.Acquire, volume.Confirm, call.ControllerPublish, call.ControllerUnpublish} {
		for _, out := range []volume.Outcome{{}, {Err: lost}, {Err: held}} {
			r, _ := volume.Apply(during, volume.Action{Kind: k}, out)
			if n := r.Node; n.Hold != during.Node.Hold || n.Attached != volume.Absent || len(n.Watches) > 0 {
				t.Errorf("the hold was lost during %s: attached %s, hold %+v, watches %+v", k, n.Attached, n.Hold, n.Watches)
			}
		}
	}
}

// TestAcquireAgain gives up the hold of a host with claims that were admitted meanwhile. The next Acquire
// asks for the right to write only if one of them writes.
func TestAcquireAgain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		access call.AccessMode
		change func(*volume.Claim)
		reader bool
	}{
		{"a reader beside writers", call.MultiNodeSingleWriter, func(c *volume.Claim) { c.ReadOnly = true }, true},
		{"a writer", call.MultiNodeSingleWriter, func(*volume.Claim) {}, false},
		{"an adopted mount may be writable", call.MultiNodeSingleWriter, func(c *volume.Claim) { c.ReadOnly, c.Adopted = true, true }, false},
		{"a mode without other writers", call.SingleNodeWriter, func(c *volume.Claim) { c.ReadOnly = true }, false},
	} {
		r := sharedMounted(t)
		c := r.Claims["a"]
		tt.change(&c)
		r.Claims["a"] = c
		r.Node.Hold.State, r.Node.Hold.Access = volume.Failed, tt.access
		r, _ = volume.Apply(r, volume.Action{Kind: volume.GiveUp}, volume.Outcome{})
		if h := r.Node.Hold; h.Reader != tt.reader || h.Access != tt.access {
			t.Errorf("%s: the next hold is %+v", tt.name, h)
		}
	}
}

// TestLoadedHold checks the hold of a record after each way in which the previous agent can end.
func TestLoadedHold(t *testing.T) {
	for after, want := range map[volume.Stop]map[volume.Side]volume.Side{
		volume.Stopped:  {volume.Absent: volume.Absent, volume.Present: volume.Present, volume.Failed: volume.Failed},
		volume.Crashed:  {volume.Absent: volume.Unknown, volume.Present: volume.Present, volume.Failed: volume.Failed},
		volume.Rebooted: {volume.Absent: volume.Unknown, volume.Present: volume.Unknown, volume.Failed: volume.Unknown},
		volume.Shut:     {volume.Absent: volume.Unknown, volume.Present: volume.Unknown, volume.Failed: volume.Unknown},
	} {
		for was, is := range want {
			r := sharedMounted(t)
			r.Node.Hold.State = was
			got, changed := volume.Loaded(r, after, false)
			h := got.Node.Hold
			if h.State != is || h.Confirmed == after.Boot() || h.Operation != "op" || changed != (h != r.Node.Hold) {
				t.Errorf("%s after stop %d: %+v, changed: %t", was, after, h, changed)
			}
		}
	}
}

// TestRebuiltHold checks records that do not come from the newest state database. Such a record never
// shows a hold. It keeps the operation, so that the agent can verify the hold or give it up.
func TestRebuiltHold(t *testing.T) {
	info := plugin.Info{Caps: plugin.Caps{Attach: true, Stage: true}}
	for name, rebuild := range map[string]func(volume.Record) volume.Record{
		"restored":              func(r volume.Record) volume.Record { return volume.Restored(r, false, false, nil) },
		"restored after a boot": func(r volume.Record) volume.Record { return volume.Restored(r, true, false, nil) },
		"copied":                func(r volume.Record) volume.Record { return volume.Copied(r, volume.Observed{}, info, false) },
		"copied after a boot":   func(r volume.Record) volume.Record { return volume.Copied(r, volume.Observed{}, info, true) },
		"adopted":               func(r volume.Record) volume.Record { return volume.Adopt(r, asMounted(), true) },
		"adopted, unmounted":    func(r volume.Record) volume.Record { return volume.Adopt(r, volume.Observed{}, true) },
		"adopted after a boot": func(r volume.Record) volume.Record {
			r.Node.Attached = volume.Absent
			return volume.Adopt(r, volume.Observed{}, false)
		},
	} {
		if h := rebuild(sharedMounted(t)).Node.Hold; h.State != volume.Unknown || h.Confirmed || h.Operation != "op" {
			t.Errorf("%s: %+v", name, h)
		}
	}

	earlier := volume.EarlierHold{Hold: volume.Hold{State: volume.Present, Confirmed: true, Operation: "op"}, Attached: true, NodeID: "n"}
	r := volume.Unexplained(volume.Volume{ID: "data", Shared: true}, earlier, "/s")
	if n := r.Node; n.Hold.State != volume.Unknown || n.Hold.Confirmed || n.Attached != volume.Unknown || n.Staged != volume.Unknown {
		t.Errorf("a hold without a record: %+v", n)
	}
}

// TestUrgencyOfHold checks which changes of a hold the next step depends on.
func TestUrgencyOfHold(t *testing.T) {
	for _, tt := range []struct {
		name     string
		was, now volume.Hold
		want     volume.Saving
	}{
		{"acquired", volume.Hold{}, volume.Hold{State: volume.Present}, volume.SaveFirst},
		{"confirmed", volume.Hold{State: volume.Present}, volume.Hold{State: volume.Present, Confirmed: true}, volume.SaveFirst},
		{"no longer confirmed", volume.Hold{State: volume.Present, Confirmed: true}, volume.Hold{State: volume.Present}, volume.SaveFirst},
		{"to be given up", volume.Hold{State: volume.Present}, volume.Hold{State: volume.Failed}, volume.SaveFirst},
		{"lost", volume.Hold{State: volume.Present}, volume.Hold{State: volume.Present, Lost: true}, volume.SaveFirst},
		{"given up", volume.Hold{State: volume.Failed}, volume.Hold{}, volume.SaveWithNext},
		{"not acquired", volume.Hold{}, volume.Hold{State: volume.Unknown}, volume.SaveWithNext},
	} {
		before, now := stored("data", "p"), stored("data", "p")
		before.Node.Hold, now.Node.Hold = tt.was, tt.now
		if got := volume.Urgency(before, now); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestFocusOnHold checks that a record is examined as a whole while its hold is not usable.
func TestFocusOnHold(t *testing.T) {
	r, _ := crowd(sharedMounted(t), asMounted())
	if _, narrow := volume.FocusRecord(r, nil); !narrow {
		t.Error("a settled shared volume is looked at as a whole")
	}
	for name, change := range map[string]func(*volume.Hold){
		"unknown":       func(h *volume.Hold) { h.State = volume.Unknown },
		"lost":          func(h *volume.Hold) { h.Lost = true },
		"not confirmed": func(h *volume.Hold) { h.Confirmed = false },
	} {
		changed := r
		change(&changed.Node.Hold)
		if _, narrow := volume.FocusRecord(changed, nil); narrow {
			t.Errorf("%s: the record is looked at in part", name)
		}
	}
}

// TestAdmitHold checks which claims fit the hold that the host has.
func TestAdmitHold(t *testing.T) {
	info := plugin.Info{NodeID: "n", Caps: plugin.Caps{Attach: true, Stage: true}}
	request := with(writer("b"), func(q *volume.Request) { q.Operation = "new" })
	kept := sharedMounted(t)
	kept.Claims, kept.Node.Mode = nil, nil
	for _, tt := range []struct {
		name     string
		change   func(*volume.Record)
		want     string // part of the refusal, or "" if the claim is admitted
		op       string
		attached volume.Side
	}{
		{"the first claim", func(r *volume.Record) { r.Node.Hold, r.Node.Attached = volume.Hold{}, volume.Absent }, "", "new", volume.Absent},
		{"under a hold that the host has kept", func(*volume.Record) {}, "", "op", volume.Present},
		{"while the volume may be being detached", func(r *volume.Record) { r.Node.Hold.Confirmed = false }, "", "op", volume.Unknown},
		{"while the hold is being given up", func(r *volume.Record) { r.Node.Hold.State, r.Node.Attached = volume.Failed, volume.Absent }, "", "op", volume.Absent},
		{"under a lost hold", func(r *volume.Record) { r.Node.Hold.Lost = true }, "has lost its hold", "op", volume.Present},
		{"in another mode", func(r *volume.Record) { r.Node.Hold.Access = call.SingleNodeWriter }, "holds volume \"data\" in mode single-node-writer", "op", volume.Present},
		{"a writer under a reader's hold", func(r *volume.Record) { r.Node.Hold.Reader = true }, "as a reader", "op", volume.Present},
	} {
		r := kept
		tt.change(&r)
		got, err := volume.Admit(r, request, info, now)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !volume.IsDetaching(err)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if n := got.Node; n.Hold.Operation != tt.op || n.Attached != tt.attached {
			t.Errorf("%s: attached %s, hold %+v", tt.name, n.Attached, n.Hold)
		}
	}
}

// TestClaimUnderHold checks invariant I5: a further claim under the hold of this host takes the same steps while
// the cluster is away, and none of them needs the cluster.
func TestClaimUnderHold(t *testing.T) {
	steps := func(away string) (all []string) {
		r, o := sharedMounted(t), asMounted()
		o.Cluster.Away = away
		r, err := volume.Admit(r, writer("b"), plugin.Info{NodeID: "n", Caps: plugin.Caps{Attach: true, Stage: true}}, now)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			a := volume.Next(r, seen(r, o))
			all = append(all, words(a))
			if a.Kind == volume.Settled || a.Kind == volume.Wait {
				break
			}
			out := volume.Outcome{}
			if a.Kind == call.NodePublish {
				out.Mount = mountID(9)
				o.Targets["b"] = volume.Sight{Seen: volume.SeenMount, Identity: *out.Mount}
			}
			r, _ = volume.Apply(r, a, out)
		}
		return all
	}
	with, without := steps(""), steps(away)
	if !slices.Equal(with, without) || with[len(with)-1] != "settled" {
		t.Errorf("with the cluster: %q, without it: %q", with, without)
	}
	for _, kind := range []call.Method{volume.Acquire, volume.Confirm, volume.GiveUp, call.ControllerPublish} {
		if slices.ContainsFunc(with, func(step string) bool { return strings.HasPrefix(step, string(kind)) }) {
			t.Errorf("the claim takes the step %s: %q", kind, with)
		}
	}
}

// TestExplainHold checks the explanation of a volume that waits for its cluster.
func TestExplainHold(t *testing.T) {
	waiting := &volume.Attempt{Action: volume.Action{Kind: volume.Acquire}, Tries: 9, First: now, Next: now.Add(time.Second), Err: &volume.CallError{
		Code: volume.CodeHeld, Message: `volume "data" is held by host "two"`, Answered: true,
	}}
	for _, tt := range []struct {
		name       string
		change     func(*volume.Record, *volume.Observed)
		at         *volume.Attempt
		want, note string
	}{
		{"another host holds it", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State = volume.Absent, volume.Absent
		}, waiting, "mounting: mounting, waiting for another host", `volume "data" is held by host "two"`},
		{"another host calls for it", released, waiting, "detaching: detaching, waiting for another host", `volume "data" is held by host "two"`},
		{"the cluster is away", func(r *volume.Record, o *volume.Observed) {
			unmounted(r, o)
			r.Node.Attached, r.Node.Hold.State, o.Cluster.Away = volume.Absent, volume.Absent, away
		}, nil, "mounting: mounting, cluster not reachable", away},
		{"mounted, and the cluster is away", func(_ *volume.Record, o *volume.Observed) { o.Cluster.Away = away }, nil, "mounted: mounted, writable", ""},
		{"not given up yet", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Claims, r.Node.Attached = nil, volume.Absent
		}, nil, "detaching: detaching, the hold is given up next", ""},
		{"not given up, and the cluster is away", func(r *volume.Record, o *volume.Observed) {
			released(r, o)
			r.Claims, r.Node.Attached, o.Cluster.Away = nil, volume.Absent, away
		}, nil, "detaching: detaching, the hold is given up next, cluster not reachable", away},
		{"lost", func(r *volume.Record, _ *volume.Observed) { *r, _ = volume.LoseHold(*r) }, nil, "detaching: detaching, this host has lost its hold", ""},
	} {
		r, o := sharedMounted(t), asMounted()
		tt.change(&r, &o)
		e := volume.Explain(r, o, tt.at)
		if got := string(e.State) + ": " + e.Summary; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if notes := strings.Join(e.Notes, "\n"); !strings.Contains(notes, tt.note) {
			t.Errorf("%s: notes %q, want %q", tt.name, notes, tt.note)
		}
	}
}

// TestYieldHold checks that a host gives up its hold if no host can attach the volume, but only a hold
// under which nothing was made.
func TestYieldHold(t *testing.T) {
	nobody := volume.Outcome{Unsent: true, Err: &volume.CallError{Code: volume.CodeNoExecutor, Answered: true, Unsent: true}}
	for _, tt := range []struct {
		name     string
		attached volume.Side
		action   volume.Action
		out      volume.Outcome
		want     volume.Side
	}{
		{"no executor", volume.Absent, volume.Action{Kind: call.ControllerPublish, NodeID: "n"}, nobody, volume.Failed},
		{"no executor for a repair", volume.Failed, volume.Action{Kind: call.ControllerPublish, NodeID: "n"}, nobody, volume.Present},
		{"the cluster is away", volume.Absent, volume.Action{Kind: call.ControllerPublish, NodeID: "n"}, volume.Outcome{Unsent: true, Err: &volume.CallError{Code: "Host"}}, volume.Present},
		{"a proof to give up", volume.Absent, volume.Action{Kind: volume.Prove, Yield: true}, volume.Outcome{}, volume.Failed},
		{"another proof", volume.Absent, volume.Action{Kind: volume.Prove}, volume.Outcome{}, volume.Present},
	} {
		r, o := sharedMounted(t), asMounted()
		unmounted(&r, &o)
		r.Node.Attached, r.Node.Hold.Confirmed = tt.attached, false
		r, _ = volume.Apply(r, tt.action, tt.out)
		if r.Node.Hold.State != tt.want || r.Node.Attached != tt.attached {
			t.Errorf("%s: attached %s, hold %+v", tt.name, r.Node.Attached, r.Node.Hold)
		}
	}
}

// TestDoubtAttachment checks when another host's view of the attachment changes a record.
func TestDoubtAttachment(t *testing.T) {
	if r, changed := volume.DoubtAttachment(sharedMounted(t), "op"); !changed || r.Node.Attached != volume.Unknown || r.Node.Hold.Confirmed {
		t.Errorf("attached %s, hold %+v", r.Node.Attached, r.Node.Hold)
	}
	if _, changed := volume.DoubtAttachment(sharedMounted(t), "later"); changed {
		t.Error("the doubt about another hold has changed the record")
	}
	lost, _ := volume.LoseHold(sharedMounted(t))
	if _, changed := volume.DoubtAttachment(lost, "op"); changed {
		t.Error("the doubt has changed a record without a hold")
	}
}
