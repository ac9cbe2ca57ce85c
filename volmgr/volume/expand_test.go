package volume_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

const mib = 1 << 20

// grower returns a plugin that can expand volumes.
func grower() plugin.Info {
	return plugin.Info{ID: "ebs", Caps: plugin.Caps{Attach: true, Stage: true, Expand: true, NodeExpand: true}}
}

// TestExpandDecides checks which sizes Expand permits for a volume with a given size and given
// bounds.
func TestExpandDecides(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*volume.Volume, *plugin.Info)
		size    int64
		want    volume.Expansion
		refused string
	}{
		"larger":                       {nil, 16, volume.Expansion{Want: 16}, ""},
		"what it has":                  {nil, 12, volume.Expansion{}, ""},
		"between what it must and has": {nil, 11, volume.Expansion{}, ""},
		"smaller":                      {nil, 9, volume.Expansion{}, `volume "data" has 12B and cannot shrink to 9B`},
		"more than it may":             {nil, 21, volume.Expansion{}, "20B at most (capacity_max)"},
		"what it must is not known":    {func(v *volume.Volume, _ *plugin.Info) { v.CapacityMin = 0 }, 11, volume.Expansion{}, "cannot shrink"},
		"what it has is not known":     {func(v *volume.Volume, _ *plugin.Info) { v.Capacity = 0 }, 11, volume.Expansion{Want: 11}, ""},
		"nothing is known":             {func(v *volume.Volume, _ *plugin.Info) { v.Capacity, v.CapacityMin = 0, 0 }, 1, volume.Expansion{Want: 1}, ""},
		"under way":                    {func(v *volume.Volume, _ *plugin.Info) { v.Expansion.Want = 16 }, 16, volume.Expansion{Want: 16}, ""},
		"further":                      {func(v *volume.Volume, _ *plugin.Info) { v.Expansion.Want = 16 }, 18, volume.Expansion{Want: 18}, ""},
		"less far":                     {func(v *volume.Volume, _ *plugin.Info) { v.Expansion.Want = 16 }, 14, volume.Expansion{Want: 16}, "is being expanded to 16B already"},
		"less than it has, under way":  {func(v *volume.Volume, _ *plugin.Info) { v.Expansion.Want = 16 }, 11, volume.Expansion{Want: 16}, ""},
		"being deleted":                {func(v *volume.Volume, _ *plugin.Info) { v.Provision = volume.Deleting }, 16, volume.Expansion{}, "deleting did not end"},
		"offline":                      {func(_ *volume.Volume, p *plugin.Info) { p.Caps.Offline = true }, 16, volume.Expansion{Want: 16, Offline: true}, ""},
		"the node alone":               {func(_ *volume.Volume, p *plugin.Info) { p.Caps.Expand = false }, 16, volume.Expansion{Node: 16}, ""},
		"neither":                      {func(_ *volume.Volume, p *plugin.Info) { p.Caps = plugin.Caps{} }, 16, volume.Expansion{}, `plugin "ebs" cannot expand volumes`},
		"after a refusal": {func(v *volume.Volume, _ *plugin.Info) {
			v.Expansion.Refused = volume.Refusal{Step: call.ControllerExpand, Size: 18}
		}, 16, volume.Expansion{Want: 16}, ""},
		"once more what the node refused": {func(v *volume.Volume, _ *plugin.Info) {
			v.Expansion = volume.Expansion{Node: 12, Refused: volume.Refusal{Step: call.NodeExpand, Size: 12}}
		}, 12, volume.Expansion{Node: 12}, ""},
	} {
		r, p := registered(), grower()
		if tt.change != nil {
			tt.change(&r.Volume, &p)
		}
		was := r.Volume.Expansion
		now, changed, err := volume.Expand(r, tt.size, p, nil)
		if tt.refused != "" && (!errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.refused)) || tt.refused == "" && err != nil {
			t.Errorf("%s: %v, want %q", name, err, tt.refused)
		}
		if got := now.Volume.Expansion; got != tt.want || changed != (got != was) || now.Volume.CapacityMin != r.Volume.CapacityMin {
			t.Errorf("%s: %+v (changed: %v), want %+v", name, got, changed, tt.want)
		}
	}
}

// TestExpandOffline checks a plugin that expands only volumes that are not in use (OFFLINE). Expand
// must refuse while the volume is on this host.
func TestExpandOffline(t *testing.T) {
	p := grower()
	p.Caps.Offline = true
	r := admit(t, registered(), writer("a"))
	_, _, err := volume.Expand(r, 16, p, nil)
	if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `is claimed by "a" (pending)`) {
		t.Errorf("claimed: %v", err)
	}
	r = registered()
	r.Node.Attached, r.Node.NodeID = volume.Present, "n"
	if _, _, err = volume.Expand(r, 16, p, nil); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "has pending calls for") {
		t.Errorf("attached: %v", err)
	}
	if r, _, err = volume.Expand(registered(), 16, p, nil); err != nil {
		t.Fatal(err)
	}
	// A claim is requested after the expansion. The agent has made no side yet, so after a crash
	// all sides are known to be absent.
	r = admit(t, r, writer("a"))
	for _, after := range []volume.Stop{volume.Crashed, volume.Rebooted} {
		if now, changed := volume.Loaded(r, after, false); changed || len(now.Node.Watches) > 0 {
			t.Errorf("loaded: %+v", now)
		}
	}
	o := volume.Observed{Plugin: view()}
	o.Plugin.Info.Caps = p.Caps
	o.Parked = map[string]bool{"ControllerExpandVolume/": true}
	if a := volume.Next(r, o); a.Kind != volume.Wait || a.Cause != volume.CauseBackoff {
		t.Errorf("while the call is put off: %+v", a)
	}
	o.Parked = nil
	if a := volume.Next(r, o); a.Kind != call.ControllerExpand || a.Size != 16 {
		t.Errorf("before anything else: %+v", a)
	}
}

// TestNextExpands checks in which states Next chooses a step of an expansion.
func TestNextExpands(t *testing.T) {
	expand := func(e volume.Expansion) func(*volume.Record, *volume.Observed) {
		return func(r *volume.Record, o *volume.Observed) {
			r.Volume.Expansion = e
			o.Plugin.Info.Caps.Expand, o.Plugin.Info.Caps.NodeExpand = true, true
		}
	}
	parked := func(o *volume.Observed, k call.Method) { o.Parked = map[string]bool{string(k) + "/": true} }
	for name, tt := range map[string]struct {
		change func(*volume.Record, *volume.Observed)
		want   string
	}{
		"mounted":            {expand(volume.Expansion{Want: 16}), "ControllerExpandVolume  "},
		"mounted, then":      {expand(volume.Expansion{Node: 16}), "NodeExpandVolume  /s"},
		"refused":            {expand(volume.Expansion{Node: 16, Refused: volume.Refusal{Step: call.NodeExpand}}), "settled"},
		"refused by another": {expand(volume.Expansion{Node: 16, Refused: volume.Refusal{Step: call.ControllerExpand}}), "NodeExpandVolume  /s"},
		"being deleted": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Want: 16})(r, o)
			r.Volume.Provision = volume.Deleting
		}, "settled"},
		"put off, nothing else waits": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Want: 16})(r, o)
			parked(o, call.ControllerExpand)
			edit(r, func(c *volume.Claim) { c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil })
			o.Targets["a"] = volume.Sight{}
		}, "NodePublishVolume a /t/a"},
		"a claim waits for the node": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Node: 16})(r, o)
			parked(o, call.NodeExpand)
			edit(r, func(c *volume.Claim) { c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil })
			o.Targets["a"] = volume.Sight{}
		}, "wait backoff: NodeExpandVolume failed and is not due yet"},
		"a claim beside another does not": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Node: 16})(r, o)
			parked(o, call.NodeExpand)
			b := r.Claims["a"]
			b.Alloc, b.Seq, b.State, b.Published, b.Mount, b.Target = "b", 2, volume.Pending, volume.Absent, nil, "/t/b"
			r.Claims["b"] = b
		}, "NodePublishVolume b /t/b"},
		"staging mounted nothing": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Node: 16})(r, o)
			r.Node.Mount, o.Staging = nil, volume.Sight{}
		}, "NodeExpandVolume  /t/a"},
		"mounted for reading": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Node: 16})(r, o)
			m := *r.Node.Mode
			m.Access = call.SingleNodeReaderOnly
			r.Node.Mode = &m
		}, "settled"},
		"on its way down": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Want: 16, Node: 12})(r, o)
			edit(r, func(c *volume.Claim) { c.Wanted, c.State = false, volume.Unpublishing })
		}, "NodeUnpublishVolume a /t/a"},
		"offline by now": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Want: 16})(r, o)
			o.Plugin.Info.Caps.Offline = true
		}, `wait expand: plugin "p" expands volumes only while they are not in use`},
		"forgotten storage comes first": {func(r *volume.Record, o *volume.Observed) {
			expand(volume.Expansion{Want: 16})(r, o)
			o.Leftover = "first that"
		}, "wait debt: first that"},
	} {
		r, o := mounted(t), asMounted()
		tt.change(&r, &o)
		if got := words(volume.Next(r, o)); strings.TrimSpace(got) != strings.TrimSpace(tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestApplyExpand checks how Apply records the progress of an expansion. If a user requested
// another size during the call, Apply must keep that request.
func TestApplyExpand(t *testing.T) {
	refusal := &volume.CallError{Step: "ControllerExpandVolume", Code: "OutOfRange", Message: "no", Retry: volume.RetryChange, Answered: true}
	open := &volume.CallError{Code: "DeadlineExceeded", Retry: volume.RetryBackoff}
	controller, node := volume.Action{Kind: call.ControllerExpand, Size: 16}, volume.Action{Kind: call.NodeExpand, Size: 16, Path: "/s"}
	refused := func(k call.Method) volume.Refusal {
		return volume.Refusal{Step: k, Size: 16, Code: "OutOfRange", Message: "no"}
	}
	for name, tt := range map[string]struct {
		was       volume.Expansion
		a         volume.Action
		out       volume.Outcome
		want      volume.Expansion
		min, size int64
	}{
		"done":              {volume.Expansion{Want: 16, Offline: true}, controller, volume.Outcome{Capacity: 18}, volume.Expansion{}, 16, 18},
		"done, size unsaid": {volume.Expansion{Want: 16}, controller, volume.Outcome{}, volume.Expansion{}, 16, 16},
		"then the node":     {volume.Expansion{Want: 16}, controller, volume.Outcome{Capacity: 18, NodeRequired: true}, volume.Expansion{Node: 18}, 16, 18},
		"further meanwhile": {volume.Expansion{Want: 20}, controller, volume.Outcome{Capacity: 16}, volume.Expansion{Want: 20}, 16, 16},
		"open":              {volume.Expansion{Want: 16}, controller, volume.Outcome{Err: open}, volume.Expansion{Want: 16}, 10, 12},
		"refused":           {volume.Expansion{Want: 16, Offline: true}, controller, volume.Outcome{Err: refusal}, volume.Expansion{Refused: refused(call.ControllerExpand)}, 10, 12},
		"refused unsent":    {volume.Expansion{Want: 16}, controller, volume.Outcome{Err: refusal, Unsent: true}, volume.Expansion{Refused: refused(call.ControllerExpand)}, 10, 12},
		"refused, further":  {volume.Expansion{Want: 20}, controller, volume.Outcome{Err: refusal}, volume.Expansion{Want: 20}, 10, 12},
		"node done":         {volume.Expansion{Node: 16}, node, volume.Outcome{Capacity: 16}, volume.Expansion{}, 16, 16},
		"node, more by now": {volume.Expansion{Node: 20}, node, volume.Outcome{}, volume.Expansion{Node: 20}, 16, 16},
		"node open":         {volume.Expansion{Node: 16}, node, volume.Outcome{Err: open}, volume.Expansion{Node: 16}, 10, 12},
		"node alone, no":    {volume.Expansion{Node: 16}, node, volume.Outcome{Err: refusal}, volume.Expansion{Refused: refused(call.NodeExpand)}, 10, 12},
	} {
		r := registered()
		r.Volume.Expansion = tt.was
		now, _ := volume.Apply(r, tt.a, tt.out)
		if v := now.Volume; v.Expansion != tt.want || v.CapacityMin != tt.min || v.Capacity != tt.size {
			t.Errorf("%s: %+v, %d, %d", name, v.Expansion, v.CapacityMin, v.Capacity)
		}
		if now.Volume.Expansion != r.Volume.Expansion && volume.Urgency(r, now) != volume.SaveFirst {
			t.Errorf("%s: it is not saved first", name)
		}
	}
	r := registered()
	r.Volume.Capacity, r.Volume.Expansion.Node = 16, 16
	now, events := volume.Apply(r, node, volume.Outcome{Err: refusal})
	if e := now.Volume.Expansion; e.Node != 16 || e.Refused != refused(call.NodeExpand) || len(events) != 1 || events[0].Type != "expand-failed" {
		t.Errorf("the node refuses what the storage has: %+v, %+v", e, events)
	}
}

// TestExplainExpansion checks how Explain describes an expansion.
func TestExplainExpansion(t *testing.T) {
	refused := volume.Refusal{Step: call.NodeExpand, Size: 16 * mib, Code: "FailedPrecondition", Message: "not now"}
	failing := &volume.Attempt{Action: volume.Action{Kind: call.ControllerExpand, Size: 16 * mib}, Err: &volume.CallError{Code: "Internal", Retry: volume.RetryBackoff}, Tries: 3}
	for name, tt := range map[string]struct {
		free  bool
		e     volume.Expansion
		at    *volume.Attempt
		state volume.State
		words string
	}{
		"mounted":           {false, volume.Expansion{Want: 16 * mib}, nil, volume.StateMounted, "mounted, writable, expanding to 16MiB"},
		"mounted, the node": {false, volume.Expansion{Node: 16 * mib}, nil, volume.StateMounted, "mounted, writable, expanding to 16MiB"},
		"free":              {true, volume.Expansion{Want: 16 * mib}, nil, volume.StateFree, "free, expanding to 16MiB"},
		"free, the node":    {true, volume.Expansion{Node: 16 * mib}, nil, volume.StateFree, "its storage has 16MiB; its contents are expanded when it is mounted for writing"},
		"refused":           {false, volume.Expansion{Node: 16 * mib, Refused: refused}, nil, volume.StateDegraded, "volctl volume expand data 16MiB"},
		"refused, words":    {false, volume.Expansion{Node: 16 * mib, Refused: refused}, nil, volume.StateDegraded, "it could not be expanded to 16MiB: NodeExpandVolume: FailedPrecondition: not now"},
		"failing, mounted":  {false, volume.Expansion{Want: 16 * mib}, failing, volume.StateDegraded, "degraded: it cannot be expanded to 16MiB"},
		"failing, free":     {true, volume.Expansion{Want: 16 * mib}, failing, volume.StateStuck, "stuck: expanding to 16MiB"},
	} {
		r, o := mounted(t), asMounted()
		if tt.free {
			r, o.Staging, o.Targets = volume.Record{Volume: r.Volume}, volume.Sight{}, nil
		}
		r.Volume.ID, r.Volume.Expansion = "data", tt.e
		e := volume.Explain(r, o, tt.at)
		if all := strings.Join(append([]string{e.Summary, suggest.Words(e.Fix)}, e.Notes...), "\n"); e.State != tt.state || !strings.Contains(all, tt.words) {
			t.Errorf("%s: %s, %s, want %s with %q", name, e.State, all, tt.state, tt.words)
		}
		if brief := volume.InBrief(r, tt.at); brief != tt.state {
			t.Errorf("%s: in brief %s, want %s", name, brief, tt.state)
		}
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0B", 1000: "1kB", 20e9: "20GB", 1023: "1023B", 1024: "1KiB", 1536 * mib: "1536MiB", 20 << 30: "20GiB", 3 << 40: "3TiB", 1 << 50: "1024TiB"} {
		if got := volume.Size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}

// TestApplyExpandLies checks that Apply accepts any size that a plugin reports. No answer may make
// a volume smaller, or produce a record that the agent would refuse to adopt.
func TestApplyExpandLies(t *testing.T) {
	for got, want := range map[int64]int64{-5: 16, 0: 16, 1: 12, 14: 14, 16: 16, 1 << 62: 1 << 62} {
		r := registered()
		r.Volume.Expansion.Want = 16
		now, _ := volume.Apply(r, volume.Action{Kind: call.ControllerExpand, Size: 16}, volume.Outcome{Capacity: got, NodeRequired: true})
		v := now.Volume
		if v.Capacity != want || v.CapacityMin != min(16, want) || v.Expansion != (volume.Expansion{Node: want}) || now.Check() != nil {
			t.Errorf("answered with %d: %+v, %v", got, v, now.Check())
		}
	}
}
