package provision_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// reporting returns a world with a mounted volume. The plugin of this world supports every report
// call.
func reporting(t *testing.T) (*world, *provision.Service) {
	t.Helper()
	w := newWorld()
	w.mustRegister(t, existing())
	w.claim(t, "data")
	c := &w.view.Info.Caps
	c.Stats, c.NodeHealth, c.Health, c.Get = true, true, true, true
	w.calls, w.events = nil, nil
	return w, w.service()
}

// TestReportGates checks that the agent makes only the calls that the plugin advertises.
func TestReportGates(t *testing.T) {
	const stats, node, ctl, get = "stats vol-9 /t", "node health vol-9 /t /s", "controller health vol-9, 1 secret", "get vol-9"
	for name, tt := range map[string]struct {
		caps    plugin.Caps
		storage bool
		change  func(*world)
		calls   []string
	}{
		"nothing":                      {plugin.Caps{}, true, nil, nil},
		"stats":                        {plugin.Caps{Stats: true}, true, nil, []string{stats}},
		"node health":                  {plugin.Caps{NodeHealth: true}, true, nil, []string{node}},
		"controller health":            {plugin.Caps{Health: true}, true, nil, []string{ctl}},
		"get, not asked for":           {plugin.Caps{Get: true}, false, nil, nil},
		"get":                          {plugin.Caps{Get: true}, true, nil, []string{get}},
		"an older driver":              {plugin.Caps{Get: true, Condition: true}, false, nil, []string{get}},
		"an older one that has no get": {plugin.Caps{Condition: true}, false, nil, nil},
		"both ways to tell":            {plugin.Caps{Get: true, Condition: true, Health: true}, false, nil, []string{ctl}},
		"not mounted": {plugin.Caps{Stats: true, NodeHealth: true, Health: true}, false, func(w *world) {
			w.volumes["data"] = volume.Record{Volume: w.volumes["data"].Volume}
		}, []string{ctl}},
		"the plugin is down": {plugin.Caps{Stats: true, Health: true}, false, func(w *world) { w.view.Ready = false }, nil},
		"no controller is there": {plugin.Caps{Stats: true, Health: true}, false, func(w *world) {
			w.view.Apart = &plugin.Apart{Node: plugin.Service{Ready: true}}
		}, []string{stats}},
		"no node part is there": {plugin.Caps{Stats: true, Health: true}, false, func(w *world) {
			w.view.Apart = &plugin.Apart{Controller: plugin.Service{Ready: true}}
		}, []string{ctl}},
	} {
		w, s := reporting(t)
		w.view.Info.Caps = tt.caps
		if tt.change != nil {
			tt.change(w)
		}
		if _, err := s.Report(t.Context(), "data", 0, tt.storage); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		equal(t, name, w.calls, tt.calls)
	}
	w, s := reporting(t)
	_, err := s.Report(t.Context(), "other", 0, false)
	want(t, "unknown", err, volume.ErrNotFound)
	o := w.options()
	o.Halt = "another namespace"
	_, err = provision.New(o).Report(t.Context(), "data", 0, false)
	want(t, "halted", err, volume.ErrRefused, "another namespace")
	equal(t, "calls", len(w.calls), 0)
}

// TestReportKept checks that an answer stays valid until a newer answer replaces it, or until the
// mount that it describes is gone.
func TestReportKept(t *testing.T) {
	w, s := reporting(t)
	bad := call.Condition{Severity: call.Inaccessible, Reason: "PathDown", Message: "no path"}
	w.onNode = func(context.Context) (call.Health, error) {
		return call.Health{Entries: []call.Condition{bad}}, nil
	}
	w.onCtl = func() (call.Health, error) {
		return call.Health{Entries: []call.Condition{{Severity: call.Degraded}}}, nil
	}
	if got := s.LastReport(w.volumes["data"]); got.Stats != nil || got.Node != nil {
		t.Errorf("before anybody asked: %+v", got)
	}
	got, err := s.Report(t.Context(), "data", 0, false)
	if err != nil || got.Stats == nil || got.StatsAt.IsZero() || len(got.Findings()) != 2 || len(got.Silent) > 0 {
		t.Fatalf("%v, %+v", err, got)
	}
	changed := []string{
		"health-changed data: the plugin's node finds: inaccessible, PathDown: no path",
		"health-changed data: the plugin's controller finds: degraded",
	}
	equal(t, "events", w.events, changed)

	// The node service does not answer, so its last answer stays valid, and the agent emits no
	// event.
	w.onNode = func(context.Context) (call.Health, error) {
		return call.Health{}, made("DeadlineExceeded", volume.RetryBackoff, false)
	}
	got, err = s.Report(t.Context(), "data", 0, false)
	if err != nil || len(got.Findings()) != 2 {
		t.Errorf("%v, %+v", err, got)
	}
	equal(t, "silent", got.Silent, []string{"NodeGetVolumeHealth: no answer in time"})
	equal(t, "events", w.events, changed)
	if last := s.LastReport(w.volumes["data"]); len(last.Findings()) != 2 || last.Silent != nil {
		t.Errorf("kept: %+v", last)
	}

	// The controller no longer reports a problem.
	w.onCtl = nil
	if got, err = s.Report(t.Context(), "data", 0, false); err != nil || len(got.Findings()) != 1 {
		t.Errorf("%v, %+v", err, got)
	}
	equal(t, "the last event", w.events[len(w.events)-1], "health-changed data: the plugin's controller no longer finds a problem")

	// The answer of the node service expires with the mount. A later mount does not restore it.
	calls := len(w.calls)
	unmounted := volume.Record{Volume: w.volumes["data"].Volume, Node: volume.NodeSide{Seq: w.volumes["data"].Node.Seq}}
	w.volumes["data"] = unmounted
	if last := s.LastReport(unmounted); last.Stats != nil || last.Node != nil || last.Controller == nil {
		t.Errorf("unmounted: %+v", last)
	}
	w.claim(t, "data")
	if last := s.LastReport(w.volumes["data"]); last.Stats != nil || last.Node != nil || last.Controller == nil {
		t.Errorf("mounted again: %+v", last)
	}
	// A different volume under the same id does not inherit the report.
	other := w.volumes["data"]
	other.Volume.ExternalID = "vol-7"
	if last := s.LastReport(other); last.Controller != nil {
		t.Errorf("another volume: %+v", last)
	}
	equal(t, "calls", len(w.calls), calls)
}

// TestReportForgotten checks that the agent discards the report of a deleted or deregistered
// volume.
func TestReportForgotten(t *testing.T) {
	for name, gone := range map[string]func(*provision.Service) error{
		"deleted":      func(s *provision.Service) error { return s.Delete(t.Context(), "data", "data") },
		"deregistered": func(s *provision.Service) error { _, err := s.Deregister(t.Context(), "data", false); return err },
	} {
		w, s := reporting(t)
		w.view.Info.Caps.CreateDelete = true
		w.volumes["data"] = volume.Record{Volume: w.volumes["data"].Volume}
		was := w.volumes["data"]
		if _, err := s.Report(t.Context(), "data", 0, false); err != nil || s.LastReport(was).Controller == nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := gone(s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if last := s.LastReport(was); last.Controller != nil {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

// TestOldCondition checks drivers older than CSI 1.13. The agent reads the condition of a volume
// from the stats and from ControllerGetVolume.
func TestOldCondition(t *testing.T) {
	w, s := reporting(t)
	abnormal := &call.Condition{Severity: call.Abnormal, Message: "disk on fire"}
	w.view.Info.Caps = plugin.Caps{Stats: true, NodeCondition: true, Get: true, Condition: true}
	w.stats = func() (call.Stats, error) { return call.Stats{Condition: abnormal}, nil }
	w.get = func(id string) (call.StorageVolume, error) {
		return call.StorageVolume{ExternalID: id, Condition: abnormal}, nil
	}
	got, err := s.Report(t.Context(), "data", 0, false)
	if err != nil || got.Storage != nil {
		t.Errorf("%v, %+v", err, got)
	}
	var words []string
	for _, f := range got.Findings() {
		words = append(words, f.String())
	}
	equal(t, "findings", words, []string{"abnormal: disk on fire (node)", "abnormal: disk on fire (controller)"})
	// The agent ignores a condition that the plugin does not advertise, because the field may have
	// another meaning.
	w, s = reporting(t)
	w.view.Info.Caps = plugin.Caps{Stats: true, Get: true}
	w.stats = func() (call.Stats, error) { return call.Stats{Condition: abnormal}, nil }
	w.get = func(id string) (call.StorageVolume, error) {
		return call.StorageVolume{ExternalID: id, Capacity: 7, Condition: abnormal}, nil
	}
	got, err = s.Report(t.Context(), "data", 0, true)
	if err != nil || len(got.Findings()) > 0 || got.Storage == nil || got.Storage.Capacity != 7 {
		t.Errorf("%v, %+v", err, got)
	}
}

// TestReportInTime checks a report whose calls hang or wait for another call. After its time limit,
// the report names these calls.
func TestReportInTime(t *testing.T) {
	w, _ := reporting(t)
	queue, o := &busyQueue{world: w}, w.options()
	o.Queue = queue
	s := provision.New(o)
	w.onNode = func(ctx context.Context) (call.Health, error) {
		<-ctx.Done()
		return call.Health{}, made("DeadlineExceeded", volume.RetryBackoff, false)
	}
	got, err := s.Report(t.Context(), "data", time.Millisecond, false)
	if err != nil || got.Stats == nil || len(got.Silent) == 0 || got.Silent[0] != "NodeGetVolumeHealth: no answer in time" {
		t.Errorf("%v, %+v", err, got)
	}
	queue.busy = true
	got, err = s.Report(t.Context(), "data", time.Millisecond, false)
	if err != nil || got.Stats == nil {
		t.Errorf("behind another call: %v, %+v", err, got)
	}
	equal(t, "silent", got.Silent, []string{"no call was made: another call for the volume is still running"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Report(ctx, "data", 0, false); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
}

// busyQueue is a queue in which another call runs forever while busy is true.
type busyQueue struct {
	*world
	busy bool
}

func (q *busyQueue) Exclusive(ctx context.Context, id string, fn func() error) error {
	if !q.busy {
		return q.world.Exclusive(ctx, id, fn)
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestRegisterLearns checks that Register stores the information that the plugin has about an
// existing volume.
func TestRegisterLearns(t *testing.T) {
	zone := []map[string]string{{"zone": "b"}}
	w := newWorld()
	w.view.Info.Caps.Get = true
	w.get = func(id string) (call.StorageVolume, error) {
		return call.StorageVolume{ExternalID: id, Capacity: 7, Topologies: zone, Context: map[string]string{"k": "v"}}, nil
	}
	v := w.mustRegister(t, existing()).Volume
	equal(t, "learnt", []any{v.Capacity, v.Topologies, v.Context}, []any{7, zone, map[string]string{"k": "v"}})
	equal(t, "calls", w.calls, []string{"get vol-9", "validate vol-9"})

	w = newWorld()
	w.view.Info.Caps.Get = true
	file := existing()
	file.Context = map[string]string{"mine": "1"}
	w.get = func(id string) (call.StorageVolume, error) {
		return call.StorageVolume{ExternalID: id, Context: map[string]string{"k": "v"}}, nil
	}
	equal(t, "the file's own context", w.mustRegister(t, file).Volume.Context, file.Context)

	for name, tt := range map[string]struct {
		get  func(string) (call.StorageVolume, error)
		kind error
	}{
		"it is not there": {func(string) (call.StorageVolume, error) {
			return call.StorageVolume{}, made("NotFound", volume.RetryBackoff, true)
		}, volume.ErrNotFound},
		"no answer": {func(string) (call.StorageVolume, error) {
			return call.StorageVolume{}, made("Internal", volume.RetryBackoff, true)
		}, nil},
		"of another volume": {func(string) (call.StorageVolume, error) {
			return call.StorageVolume{ExternalID: "vol-1", Capacity: 7}, nil
		}, nil},
	} {
		w := newWorld()
		w.view.Info.Caps.Get, w.get = true, tt.get
		r, _, err := w.service().Register(t.Context(), existing(), false)
		if tt.kind != nil {
			want(t, name, err, tt.kind, "vol-9")
			equal(t, name+": left", len(w.volumes), 0)
		} else if err != nil || r.Volume.Capacity != 0 {
			t.Errorf("%s: %v, %+v", name, err, r.Volume)
		}
	}
}

// listing makes the plugin return three pages with two volumes each.
func listing(w *world) {
	w.view.Info.Caps.List = true
	w.list = func(r call.ListVolumesRequest) (call.VolumePage, error) {
		at := map[string]int{"": 0, "p1": 1, "p2": 2}[r.Token]
		page := call.VolumePage{Entries: []call.StorageVolume{{ExternalID: fmt.Sprintf("v%d", 2*at)}, {ExternalID: fmt.Sprintf("v%d", 2*at+1)}}}
		if at < 2 {
			page.Next = fmt.Sprintf("p%d", at+1)
		}
		return page, nil
	}
}

func TestList(t *testing.T) {
	w := newWorld()
	listing(w)
	list := func(limit int) (ids []string, more bool, err error) {
		w.calls = nil
		more, err = w.service().List(t.Context(), "ebs", limit, func(v call.StorageVolume) error {
			ids = append(ids, v.ExternalID)
			return nil
		})
		return ids, more, err
	}
	for _, tt := range []struct {
		limit, n, pages int
		more            bool
	}{{0, 6, 3, false}, {1, 1, 1, true}, {2, 2, 1, true}, {3, 3, 2, true}, {6, 6, 3, false}, {7, 6, 3, false}} {
		ids, more, err := list(tt.limit)
		if err != nil || len(ids) != tt.n || more != tt.more || len(w.calls) != tt.pages {
			t.Errorf("limit %d: %v, %q, more %t, calls %q", tt.limit, err, ids, more, w.calls)
		}
	}
	equal(t, "calls", w.calls, []string{"list ", "list p1", "list p2"})

	// If the plugin rejects a page token that it issued, the agent restarts the listing once. The
	// listing must still report each volume only once.
	whole, aborted := w.list, 0
	w.list = func(r call.ListVolumesRequest) (call.VolumePage, error) {
		if r.Token == "p2" && aborted < 1 {
			aborted++
			return call.VolumePage{}, made("Aborted", volume.RetryBackoff, true)
		}
		return whole(r)
	}
	ids, _, err := list(0)
	equal(t, "aborted once", []any{err, ids}, []any{nil, []string{"v0", "v1", "v2", "v3", "v4", "v5"}})
	aborted = -1
	ids, _, err = list(0)
	var ce *volume.CallError
	if !errors.As(err, &ce) || ce.Code != "Aborted" || len(ids) != 4 {
		t.Errorf("aborted twice: %v, %q", err, ids)
	}
	stop := errors.New("stop")
	if _, err := w.service().List(t.Context(), "ebs", 0, func(call.StorageVolume) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the caller's end: %v", err)
	}
	w.view.Info.Caps.List = false
	_, _, err = list(0)
	want(t, "cannot", err, volume.ErrRefused, `plugin "ebs" cannot list its volumes`)
	equal(t, "calls", len(w.calls), 0)
}

// TestListEnds checks that the agent stops a listing that never ends.
func TestListEnds(t *testing.T) {
	w := newWorld()
	w.view.Info.Caps.List = true
	none := func(call.StorageVolume) error { return nil }
	w.list = func(r call.ListVolumesRequest) (call.VolumePage, error) {
		return call.VolumePage{Next: "again"}, nil
	}
	_, err := w.service().List(t.Context(), "ebs", 0, none)
	want(t, "the same token", err, nil, "returns an endless list for ListVolumes", `token "again" twice`)
	equal(t, "calls", len(w.calls), 2)
	w.list = func(r call.ListVolumesRequest) (call.VolumePage, error) {
		return call.VolumePage{Next: map[string]string{"": "a", "a": "b", "b": "a"}[r.Token]}, nil
	}
	_, err = w.service().List(t.Context(), "ebs", 0, none)
	want(t, "a loop", err, nil, `token "a" twice`)
	n := 0
	w.list = func(r call.ListVolumesRequest) (call.VolumePage, error) {
		n++
		return call.VolumePage{Next: fmt.Sprint(n)}, nil
	}
	_, err = w.service().List(t.Context(), "ebs", 0, none)
	want(t, "tokens without end", err, nil, "it returned 10000 pages")
	ctx, cancel := context.WithCancel(t.Context())
	w.list = func(r call.ListVolumesRequest) (call.VolumePage, error) {
		cancel()
		n++
		return call.VolumePage{Next: fmt.Sprint(n)}, nil
	}
	if _, err := w.service().List(ctx, "ebs", 0, none); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
}

func TestHealth(t *testing.T) {
	w := newWorld()
	_, err := w.service().Health(t.Context(), "ebs")
	want(t, "cannot", err, volume.ErrRefused, "cannot report the health of its storage")
	w.backends = func() ([]call.Condition, error) { return []call.Condition{{Severity: call.Degraded}}, nil }
	w.unwell = func(r call.ListHealthRequest) (call.HealthPage, error) {
		bad := []call.Condition{{Severity: call.DataLoss}}
		switch r.Token {
		case "":
			return call.HealthPage{Entries: []call.Health{{ExternalID: "a", Entries: bad}, {ExternalID: "well"}}, Next: "p"}, nil
		default:
			return call.HealthPage{Entries: []call.Health{{ExternalID: "a", Entries: bad}, {ExternalID: "b", Entries: slices.Repeat(bad, 99)}}}, nil
		}
	}
	w.view.Info.Caps = plugin.Caps{StorageHealth: true}
	got, err := w.service().Health(t.Context(), "ebs")
	equal(t, "storage", []any{err, got}, []any{nil, volume.PluginHealth{Storage: []call.Condition{{Severity: call.Degraded}}, Asked: []call.Method{call.NodeStorageHealth}}})
	w.view.Info.Caps.ListHealth = true
	got, err = w.service().Health(t.Context(), "ebs")
	if err != nil || len(got.Volumes) != 2 || got.Volumes[1].ExternalID != "b" || len(got.Volumes[1].Entries) != 16 || len(got.Asked) != 2 || got.More {
		t.Errorf("%v, %+v", err, got)
	}
	w.backends = func() ([]call.Condition, error) { return nil, made("Unavailable", volume.RetryBackoff, false) }
	got, err = w.service().Health(t.Context(), "ebs")
	if err != nil || len(got.Asked) != 1 || len(got.Silent) != 1 || !strings.HasPrefix(got.Silent[0], "CreateVolume: Unavailable") {
		// The helper function made always names CreateVolume as the failed call.
		t.Errorf("%v, %+v", err, got)
	}
	equal(t, "calls", w.calls, []string{"storage health", "storage health", "list health ", "list health p", "storage health", "list health ", "list health p"})
}

func TestCapacity(t *testing.T) {
	w := newWorld()
	ask := func(q call.CapacityRequest) error {
		_, err := w.service().Capacity(t.Context(), "ebs", q)
		return err
	}
	want(t, "cannot", ask(call.CapacityRequest{}), volume.ErrRefused, "cannot report its capacity")
	w.view.Info.Caps.Capacity = true
	want(t, "no topology", ask(call.CapacityRequest{Topology: set("zone", "a")}), volume.ErrRefused, "does not support topology")
	want(t, "no such mode", ask(call.CapacityRequest{Capabilities: []call.Capability{{Access: "all"}}}), volume.ErrInvalid, "all")
	if err := ask(call.CapacityRequest{}); err != nil {
		t.Error(err)
	}
	equal(t, "calls", w.calls, []string{"capacity"})
}
