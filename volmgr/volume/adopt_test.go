package volume_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// notedVolume returns a connected and staged volume with two claims. The claim "a" is a writer. The
// claim "b" is a reader with the own directory /at.
func notedVolume() volume.Record {
	mode := call.Capability{Access: call.MultiNodeSingleWriter, Attachment: call.FileSystem}
	id := func(n uint64) *volume.MountIdentity { return &volume.MountIdentity{Boot: "boot", Device: "8:1", ID: n} }
	return volume.Record{
		Volume:     volume.Volume{ID: "data", PluginID: "p", Driver: "d", ExternalID: "ext", Capabilities: []call.Capability{mode}},
		Generation: 7,
		Node: volume.NodeSide{
			Mode: &volume.Mode{Capability: mode}, Uses: volume.Uses{Attach: true, Stage: true}, Attached: volume.Present, NodeID: "n",
			PublishContext: map[string]string{"lun": "3"}, Staged: volume.Present, StagingPath: "/s/data", Mount: id(1), Boot: "boot", Seq: 2,
			Watches: []volume.Watch{{Path: "/t/c/data", Alloc: "c"}},
		},
		Claims: map[string]volume.Claim{
			"a": {
				Alloc: "a", Seq: 1, Wanted: true, State: volume.Mounted, Terms: volume.Terms{Mode: mode, Owner: volume.Owner{Kind: "someone"}},
				Target: "/t/a/data", Published: volume.Present, Mount: id(2),
			},
			"b": {
				Alloc: "b", Seq: 2, Wanted: true, State: volume.Mounted,
				Terms:  volume.Terms{Mode: mode, ReadOnly: true, Owner: volume.Owner{Kind: volume.OwnerNone}, At: "/at"},
				Target: "/t/b/data", Published: volume.Present, Mount: id(3), Bound: volume.Present, BoundMount: id(4),
			},
		},
	}
}

// asNoted returns an observation in which all mounts of the record are present.
func asNoted(r volume.Record) volume.Observed {
	see := func(m *volume.MountIdentity) volume.Sight {
		if m == nil {
			return volume.Sight{}
		}
		return volume.Sight{Seen: volume.SeenMount, Identity: *m}
	}
	o := volume.Observed{Boot: "boot", Staging: see(r.Node.Mount), Targets: map[string]volume.Sight{}, Binds: map[string]volume.Sight{}}
	o.Watched = map[string]volume.Sight{"/t/c/data": {Seen: volume.SeenMount, Identity: volume.MountIdentity{Device: "8:9", ID: 98}}}
	o.Plugin = plugin.View{Known: true, Ready: true, Info: plugin.Info{ID: "p", Driver: "d", NodeID: "n"}}
	o.Plugin.Info.Caps.Attach, o.Plugin.Info.Caps.Stage = true, true
	for alloc, c := range r.Claims {
		o.Targets[alloc], o.Binds[alloc] = see(c.Mount), see(c.BoundMount)
	}
	return o
}

// TestAdopt checks that Adopt keeps the claims of a volume that is still mounted. Afterwards the
// volume must need no steps, even after the next agent has loaded its record. A claim whose mount
// is missing must not cause the agent to unmount another mount.
func TestAdopt(t *testing.T) {
	other := volume.Sight{Seen: volume.SeenMount, Identity: volume.MountIdentity{Boot: "boot", Device: "8:9", ID: 99}}
	none := volume.Sight{}
	for name, tt := range map[string]struct {
		change func(*volume.Record, *volume.Observed)
		live   bool
		claims []string // the allocs of the claims that Adopt keeps
		steps  []call.Method
	}{
		"all there":               {func(*volume.Record, *volume.Observed) {}, true, []string{"a", "b"}, nil},
		"one target gone":         {func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = none }, true, []string{"b"}, nil},
		"one target is another's": {func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = other }, true, []string{"b"}, nil},
		"one is dead": {func(_ *volume.Record, o *volume.Observed) {
			s := o.Targets["a"]
			s.Seen = volume.SeenDead
			o.Targets["a"] = s
		}, true, []string{"a", "b"}, []call.Method{volume.Doubt, call.NodeUnpublish}},
		"targets gone, staged": {func(_ *volume.Record, o *volume.Observed) {
			o.Targets, o.Binds = map[string]volume.Sight{}, map[string]volume.Sight{}
		}, true, []string{"a", "b"}, []call.Method{volume.Doubt}},
		"only the bind is left": {func(_ *volume.Record, o *volume.Observed) {
			o.Targets, o.Staging = map[string]volume.Sight{}, none
		}, true, []string{"b"}, []call.Method{volume.Doubt}},
		"nothing there": {func(_ *volume.Record, o *volume.Observed) {
			*o = volume.Observed{Boot: "boot", Plugin: o.Plugin}
		}, true, nil, []call.Method{call.NodeUnpublish, volume.Free, call.NodeUnpublish, call.NodeUnstage, volume.Prove, call.ControllerUnpublish, volume.Free}},
		"others at every path": {func(_ *volume.Record, o *volume.Observed) {
			o.Staging, o.Targets["a"], o.Targets["b"], o.Binds["b"] = other, other, other, other
		}, true, nil, []call.Method{volume.Free, volume.Prove, call.ControllerUnpublish, volume.Free}},
		"another boot": {func(_ *volume.Record, o *volume.Observed) {
			*o = volume.Observed{Boot: "next", Plugin: o.Plugin}
		}, false, nil, []call.Method{call.NodeUnpublish, volume.Free, call.NodeUnpublish, call.NodeUnstage, volume.Prove, call.ControllerUnpublish, volume.Free}},
		"another boot, never attached": {func(r *volume.Record, o *volume.Observed) {
			r.Node.Attached, r.Node.Uses.Attach = volume.Absent, false
			*o = volume.Observed{Boot: "next", Plugin: o.Plugin}
		}, false, nil, nil},
	} {
		noted := notedVolume()
		o := asNoted(noted)
		tt.change(&noted, &o)
		r := volume.Adopt(noted, o, tt.live)
		if err := r.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var adopted []string
		for _, c := range r.Ordered() {
			if c.Adopted {
				adopted = append(adopted, c.Alloc)
			}
			if c.Owner.Kind != volume.OwnerNone || c.Adopted != c.Wanted {
				t.Errorf("%s: the claim of %s is adopted: %t, wanted: %t, owned by %q", name, c.Alloc, c.Adopted, c.Wanted, c.Owner.Kind)
			}
		}
		if !slices.Equal(adopted, tt.claims) {
			t.Errorf("%s: adopted are %q, want %q", name, adopted, tt.claims)
		}
		if r.Volume.ExternalID != "ext" || len(noted.Claims) != 2 || len(noted.Node.Watches) != 1 {
			t.Errorf("%s: the volume is %+v, and what was noted is changed", name, r.Volume)
		}
		r, _ = volume.Loaded(r, volume.Crashed, false)
		if got := walk(t, name, r, o, len(tt.steps)); !slices.Equal(got, tt.steps) {
			t.Errorf("%s: the steps are %q, want %q", name, got, tt.steps)
		}
	}
}

// walk runs up to n steps and returns their kinds. Each step succeeds and changes no mount. The
// test fails if a step unmounts a present mount.
func walk(t *testing.T, name string, r volume.Record, o volume.Observed, n int) (kinds []call.Method) {
	t.Helper()
	o.WatchOver = true
	for range n + 1 {
		a := volume.Next(r, o)
		if a.Kind == volume.EndWatch {
			r, _ = volume.Apply(r, a, volume.Outcome{})
			a = volume.Next(r, o)
		}
		if a.Kind == volume.Settled || a.Kind == volume.Wait {
			return kinds
		}
		at := o.Targets[a.Alloc]
		if a.Kind == call.NodeUnstage {
			at = o.Staging
		}
		if (a.Kind == call.NodeUnstage || a.Kind == call.NodeUnpublish) && at.Seen == volume.SeenMount {
			t.Errorf("%s: %s of what is mounted", name, a.Kind)
		}
		if a.Path == "/t/c/data" {
			t.Errorf("%s: %s of what was only watched for", name, a.Kind)
		}
		kinds = append(kinds, a.Kind)
		if len(kinds) == n && (a.Forward() || a.Kind == volume.Doubt || at.Seen == volume.SeenDead) {
			return kinds // all further steps are the same as after any restart
		}
		r, _ = volume.Apply(r, a, volume.Outcome{Boot: o.Boot})
	}
	return kinds
}

// TestAdoptedCountsAsWriter checks that Admit refuses a writer beside an adopted claim, even if
// that claim is a reader.
func TestAdoptedCountsAsWriter(t *testing.T) {
	r := notedVolume()
	o := asNoted(r)
	delete(r.Claims, "a")
	delete(o.Targets, "a")
	ask := volume.Request{Alloc: "w", Target: "/t/w/data", StagingPath: "/s/data"}
	if _, err := volume.Admit(r, ask, plugin.Info{}, time.Now()); err != nil {
		t.Errorf("a writer beside a reader: %v", err)
	}
	r = volume.Adopt(r, o, true)
	if _, err := volume.Admit(r, ask, plugin.Info{}, time.Now()); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("a writer beside an adopted reader: %v", err)
	}
}

// TestGather checks that Gather combines notes into one record for each volume. If notes differ,
// the newest note must determine the state of the volume.
func TestGather(t *testing.T) {
	r := notedVolume()
	r.Volume.RegisteredAt = time.Unix(9, 0)
	a, _ := volume.Noted(r, "a")
	newer := r
	newer.Generation, newer.Volume.Name = 9, "renamed"
	b, _ := volume.Noted(newer, "b")
	before := r
	before.Volume.ExternalID, before.Volume.RegisteredAt = "another", time.Unix(8, 0)
	before.Claims = map[string]volume.Claim{"old": r.Claims["a"]}
	old, _ := volume.Noted(before, "old")
	second := r
	second.Volume.ID = "b"
	third, _ := volume.Noted(second, "a")
	got := volume.Gather([]volume.Note{a, old, b, third})
	if len(got) != 2 || got[0].Volume.ID != "b" || got[1].Volume.Name != "renamed" || len(got[0].Claims) != 1 || len(got[1].Claims) != 2 {
		t.Errorf("gathered: %+v", got)
	}
	if _, ok := got[1].Claims["old"]; ok {
		t.Error("a claim of another registration is in it")
	}
}

// TestRenoted checks which changes of a record make the note of a claim out of date. For example,
// the claim was mounted or has ended, or one of its mounts changed.
func TestRenoted(t *testing.T) {
	full := notedVolume()
	alter := func(fn func(r *volume.Record, c *volume.Claim)) volume.Record {
		r := notedVolume()
		r.Node.Mount, r.Claims["b"] = full.Node.Mount, full.Claims["b"]
		c := full.Claims["a"]
		fn(&r, &c)
		r.Claims["a"] = c
		return r
	}
	same := alter(func(*volume.Record, *volume.Claim) {})
	pending := alter(func(_ *volume.Record, c *volume.Claim) {
		c.State, c.Published, c.Mount = volume.Pending, volume.Absent, nil
	})
	leaving := alter(func(_ *volume.Record, c *volume.Claim) { c.State, c.Wanted = volume.Unpublishing, false })
	remade := alter(func(_ *volume.Record, c *volume.Claim) { c.Mount = &volume.MountIdentity{ID: 50} })
	restaged := alter(func(r *volume.Record, _ *volume.Claim) { r.Node.Mount = &volume.MountIdentity{ID: 51} })
	owing := alter(func(r *volume.Record, _ *volume.Claim) {
		r.Node.PendingCalls = []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/t", Alloc: "x"}}
	})
	unseen := alter(func(r *volume.Record, _ *volume.Claim) { r.Node.Unseen = []volume.Unseen{{Path: "/t"}} })
	gone := alter(func(*volume.Record, *volume.Claim) {})
	delete(gone.Claims, "a")
	for name, tt := range map[string]struct {
		before, now volume.Record
		want        []string
	}{
		"nothing":        {full, same, nil},
		"taken":          {pending, full, []string{"a"}},
		"pending":        {gone, pending, nil},
		"on its way":     {full, leaving, nil},
		"mounted again":  {full, remade, []string{"a"}},
		"staged again":   {full, restaged, []string{"a", "b"}},
		"owing":          {full, owing, []string{"a", "b"}},
		"owing no more":  {owing, full, []string{"a", "b"}},
		"out of sight":   {full, unseen, []string{"a", "b"}},
		"gone":           {leaving, gone, []string{"a"}},
		"gone, untaken":  {pending, gone, []string{"a"}},
		"volume removed": {full, volume.Record{}, []string{"a", "b"}},
	} {
		got := volume.Renoted(tt.before, tt.now)
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestNoteCheck checks that Check refuses a note with missing or impossible values.
func TestNoteCheck(t *testing.T) {
	good, ok := volume.Noted(notedVolume(), "a")
	if err := good.Check(); err != nil || !ok {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*volume.Note){
		"a later format":     func(n *volume.Note) { n.Format = 2 },
		"no volume":          func(n *volume.Note) { n.Record.Volume.ID = "" },
		"a bad plugin id":    func(n *volume.Note) { n.Record.Volume.PluginID = "../x" },
		"no alloc":           func(n *volume.Note) { n.Claim.Alloc = "" },
		"no mount":           func(n *volume.Note) { n.Claim.Mount = nil },
		"not taken":          func(n *volume.Note) { n.Claim.State = volume.Pending },
		"an unknown state":   func(n *volume.Note) { n.Claim.State = "lost" },
		"no mode":            func(n *volume.Note) { n.Record.Node.Mode = nil },
		"a number too large": func(n *volume.Note) { n.Claim.Seq = 40 },
	} {
		n := good
		spoil(&n)
		if n.Check() == nil {
			t.Errorf("%s is let through", name)
		}
	}
}
