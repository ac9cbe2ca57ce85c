package volume_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

var (
	process = volume.Owner{Kind: volume.OwnerPID, PID: 812, StartTime: 4711, Boot: "b"}
	service = volume.Owner{Kind: volume.OwnerUnit, Unit: "web.service", Invocation: "1f", Boot: "b"}
)

// graves lists the owners that are gone. All other owners are alive.
type graves []volume.Owner

func (g graves) Gone(o volume.Owner) bool {
	if !o.Mortal() {
		panic("it was asked whether nobody is gone")
	}
	for _, dead := range g {
		if dead == o {
			return true
		}
	}
	return false
}

func (g graves) View(o volume.Owner) volume.OwnerView {
	if g.Gone(o) {
		return volume.OwnerView{Life: volume.LifeGone}
	}
	return volume.OwnerView{Life: volume.LifeRunning, PID: 812, Command: "rsync"}
}

func owned(o volume.Owner) func(*volume.Request) {
	return func(q *volume.Request) { q.Owner = o }
}

// TestPast checks that a claim counts as being detached after its owner has certainly ended. The
// claim must not count as being detached if its owner's state is unknown, or if a different owner
// with the same pid or unit name has ended.
func TestPast(t *testing.T) {
	r := admit(t, offering(call.SingleNodeMultiWriter), with(writer("p"), owned(process)))
	r = admit(t, r, with(writer("u"), owned(service)))
	r = admit(t, r, writer("n"))
	reused, again := process, service
	reused.StartTime++
	again.Invocation = "2e"
	for name, tt := range map[string]struct {
		owners volume.Owners
		past   string
	}{
		"nobody looks":        {nil, ""},
		"all live":            {graves{}, ""},
		"the process is gone": {graves{process}, "p"},
		"the unit is gone":    {graves{service}, "u"},
		"both are":            {graves{service, process}, "p u"},
		"namesakes are":       {graves{reused, again}, ""},
	} {
		before := r.Ordered()
		next := volume.Past(r, tt.owners)
		var past []string
		for _, c := range next.Ordered() {
			if !c.Wanted {
				past = append(past, c.Alloc)
				if c.State != volume.Unpublishing {
					t.Errorf("%s: %+v", name, c)
				}
			}
		}
		if got := strings.Join(past, " "); got != tt.past {
			t.Errorf("%s: past are %q, want %q", name, got, tt.past)
		}
		if !reflect.DeepEqual(r.Ordered(), before) {
			t.Errorf("%s: the record itself was changed", name)
		}
		if twice := volume.Past(next, tt.owners); !reflect.DeepEqual(twice, next) {
			t.Errorf("%s: the past of the past differs", name)
		}
		if err := next.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDeadHoldersAreWaitedFor checks a request that conflicts with another claim, for every kind of
// conflict. If the owner of that claim is alive, Admit must refuse the request. If the owner is
// gone, the error must be ErrDetaching, so that the caller waits.
func TestDeadHoldersAreWaitedFor(t *testing.T) {
	both := offering(call.SingleNodeMultiWriter, call.SingleNodeWriter)
	readers := offering(call.MultiNodeReaderOnly, call.SingleNodeWriter)
	for name, tt := range map[string]struct {
		r         volume.Record
		hold, ask volume.Request
	}{
		"the only writer":        {offering(call.SingleNodeWriter), writer("a"), writer("b")},
		"another mode":           {both, writer("a"), with(writer("b"), func(q *volume.Request) { q.Mode.Access = call.SingleNodeWriter })},
		"other mount flags":      {both, writer("a"), with(writer("b"), func(q *volume.Request) { q.MountFlags = []string{"noatime"} })},
		"a writer among readers": {readers, reader("a"), writer("b")},
		"one directory":          {both, with(writer("a"), func(q *volume.Request) { q.At = "/srv" }), with(writer("b"), func(q *volume.Request) { q.At = "/srv" })},
		"its own earlier self":   {both, writer("a"), writer("a")},
	} {
		r := admit(t, tt.r, with(tt.hold, owned(service)))
		tt.ask.Owner = process
		tt.ask.Owners = graves{}
		if next, err := volume.Admit(r, tt.ask, plugin.Info{}, now); !errors.Is(err, volume.ErrRefused) || volume.IsDetaching(err) || !reflect.DeepEqual(next, r) {
			t.Errorf("%s: a live one: %v", name, err)
		}
		tt.ask.Owners = graves{service}
		if next, err := volume.Admit(r, tt.ask, plugin.Info{}, now); !volume.IsDetaching(err) || !reflect.DeepEqual(next, r) {
			t.Errorf("%s: a dead one: %v", name, err)
		}
	}
	// A claim that does not conflict must not be detached, even if its owner is gone.
	r := admit(t, both, with(writer("a"), owned(service)))
	next, err := volume.Admit(r, with(writer("b"), func(q *volume.Request) { q.Owners = graves{service} }), plugin.Info{}, now)
	if err != nil || len(next.Claims) != 2 || !next.Claims["a"].Wanted {
		t.Errorf("beside a dead one: %+v, %v", next.Claims, err)
	}
}

// TestLiveHolderIsNamed checks that a refusal names the owner of the other claim and a command that
// frees the volume.
func TestLiveHolderIsNamed(t *testing.T) {
	for _, tt := range []struct {
		owner      volume.Owner
		words, fix string
	}{
		{volume.Owner{Kind: volume.OwnerNone}, `"a" (pending, for 0s)`, "volctl volume detach data a"},
		{process, `"a" (pending, for 0s, owned by pid 812 (rsync))`, "end pid 812, or unmount under it: volctl volume detach data a --force"},
		{service, `"a" (pending, for 0s, owned by web.service (pid 812, rsync))`, "systemctl stop web.service, or unmount under it: volctl volume detach data a --force"},
	} {
		r := admit(t, offering(call.SingleNodeWriter), with(writer("a"), owned(tt.owner)))
		_, err := volume.Admit(r, with(writer("b"), func(q *volume.Request) { q.Owners = graves{} }), plugin.Info{}, now)
		if err == nil || !strings.Contains(err.Error(), tt.words) || hintOf(err) != tt.fix {
			t.Errorf("%+v: %v (hint %q)", tt.owner, err, hintOf(err))
		}
		if err := volume.Droppable(r); !errors.Is(err, volume.ErrRefused) || hintOf(err) != tt.fix {
			t.Errorf("%+v: to drop it: %v (hint %q)", tt.owner, err, hintOf(err))
		}
		if err := volume.Droppable(volume.Past(r, graves{tt.owner}.ifMortal())); tt.owner.Mortal() && err != nil {
			t.Errorf("%+v: to drop one that is gone: %v", tt.owner, err)
		}
	}
}

// ifMortal returns the owners, or nil if the first owner is of a kind that cannot end.
func (g graves) ifMortal() graves {
	if len(g) > 0 && !g[0].Mortal() {
		return nil
	}
	return g
}

func TestMayDetach(t *testing.T) {
	running, unknown, gone := volume.OwnerView{Life: volume.LifeRunning, PID: 812, Command: "rsync"}, volume.OwnerView{Life: volume.LifeUnknown}, volume.OwnerView{Life: volume.LifeGone}
	for _, tt := range []struct {
		owner  volume.Owner
		wanted bool
		view   volume.OwnerView
		force  bool
		words  string
	}{
		{process, true, running, false, "is owned by pid 812 (rsync), which is running"},
		{service, true, running, false, "is owned by web.service (pid 812, rsync), which is running"},
		{service, true, unknown, false, "is owned by web.service, of which it is not known whether it is running"},
		{process, true, running, true, ""},
		{service, true, unknown, true, ""},
		{process, true, gone, false, ""},
		{process, false, running, false, ""}, // the claim is already being detached, so the request has nothing to change
		{volume.Owner{Kind: volume.OwnerNone}, true, running, false, ""},
	} {
		err := volume.MayDetach("data", volume.Claim{Alloc: "a", Wanted: tt.wanted, Terms: volume.Terms{Owner: tt.owner}}, tt.view, tt.force)
		if tt.words == "" && err != nil || tt.words != "" && (!errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.words)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestNewBoot checks the first steps after a reboot, when no volume is mounted. The agent must
// mount each wanted claim again at its old paths. If the owner of a claim is gone, the agent must
// undo the claim and make no side for it.
func TestNewBoot(t *testing.T) {
	stands := mounted(t)
	died := mounted(t)
	c := died.Claims["a"]
	c.Owner = process
	died.Claims["a"] = c
	for name, tt := range map[string]struct {
		r    volume.Record
		want []call.Method
	}{
		"no owner": {stands, []call.Method{volume.Doubt, call.NodeStage, volume.Doubt, call.NodePublish, volume.Settled}},
		"gone":     {died, []call.Method{call.NodeUnpublish, call.NodeUnstage, volume.Prove, call.ControllerUnpublish, volume.Free, volume.Settled}},
	} {
		r, _ := volume.Loaded(tt.r, volume.Rebooted, false)
		r = volume.Past(r, graves{process})
		sight := map[string]volume.Sight{}
		o := volume.Observed{
			Boot: "the next one", Targets: sight, Binds: map[string]volume.Sight{}, Watched: map[string]volume.Sight{}, WatchOver: true,
			Plugin: plugin.View{Known: true, Ready: true, Info: plugin.Info{NodeID: "n", Caps: plugin.Caps{Attach: true, Stage: true}}},
		}
		var steps []call.Method
		for range 20 {
			a := volume.Next(r, o)
			steps = append(steps, a.Kind)
			if a.Kind == volume.Settled || a.Kind == volume.Wait {
				break
			}
			out := volume.Outcome{Boot: o.Boot}
			switch a.Kind {
			case call.NodeStage:
				out.Mount = mountID(11)
				o.Staging = volume.Sight{Seen: volume.SeenMount, Identity: *out.Mount}
			case call.NodePublish:
				out.Mount = mountID(12)
				sight[a.Alloc] = volume.Sight{Seen: volume.SeenMount, Identity: *out.Mount}
			}
			r, _ = volume.Apply(r, a, out)
		}
		if !reflect.DeepEqual(steps, tt.want) {
			t.Errorf("%s: %v, want %v", name, steps, tt.want)
		}
	}
}
