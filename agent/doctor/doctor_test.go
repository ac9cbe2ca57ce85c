package doctor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// ward is a fake host for the Doctor. It implements all interfaces that the Doctor uses, and its
// state can change during an examination.
type ward struct {
	records   map[string]volume.Record
	mounts    []Mounted
	leftovers []Leftover
	halt      string

	missing   bool   // whether the target of a claim has no mount
	onLook    func() // called when the Doctor observes a volume
	onRemove  func() // called before the Doctor removes a leftover
	alone     []string
	woken     []string
	removed   []string
	mended    []NoteFile
	failing   error
	notes     []NoteFile
	guarded   map[string]bool
	cluster   Cluster
	onCluster func()   // called when the Doctor reads the cluster
	compared  int      // how often the holds were compared with the cluster
	lifted    []string // the arguments of each call of Lift, as "DIR of VOLUME"
}

func (w *ward) Volume(id string) (volume.Record, bool) { r, ok := w.records[id]; return r, ok }
func (w *ward) Volumes() []volume.Record               { return slices.Collect(maps.Values(w.records)) }

func (w *ward) Look(context.Context, volume.Record) (volume.Observed, *volume.Attempt) {
	if w.onLook != nil {
		w.onLook()
	}
	o := mounted().Observed
	if w.missing {
		o.Targets["a"] = volume.Sight{}
	}
	return o, nil
}

func (w *ward) Wake(id string) { w.woken = append(w.woken, id) }
func (w *ward) Changed(string) <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (w *ward) Exclusive(ctx context.Context, id string, fn func() error) error {
	w.alone = append(w.alone, id)
	if w.onRemove != nil {
		w.onRemove()
	}
	return errors.Join(ctx.Err(), fn())
}

func (w *ward) Mounts() ([]Mounted, error) { return slices.Clone(w.mounts), nil }
func (w *ward) Loops() []Loop              { return nil }
func (w *ward) Contents(_ context.Context, path string) (Contents, error) {
	for _, l := range w.leftovers {
		if l.Path == path {
			return l.Contents, nil
		}
	}
	return Contents{}, nil
}
func (w *ward) Block(volume.Device) (Block, bool) { return Block{}, true }
func (w *ward) Leftovers(_ context.Context, known map[string]bool) ([]Leftover, error) {
	return slices.DeleteFunc(slices.Clone(w.leftovers), func(l Leftover) bool { return known[l.Path] }), nil
}

func (w *ward) RemoveLeftover(path string) error {
	w.removed = append(w.removed, path)
	return w.failing
}

func (w *ward) Check([]volume.Record) []NoteFile { return w.notes }
func (w *ward) Fix(n NoteFile) error {
	w.mended = append(w.mended, n)
	return w.failing
}
func (w *ward) On(_ context.Context, dir string) bool { return w.guarded[dir] }
func (w *ward) Lift(_ context.Context, dir, id string) error {
	w.lifted = append(w.lifted, dir+" of "+id)
	return w.failing
}
func (w *ward) Gone(volume.Owner) bool             { return false }
func (w *ward) View(volume.Owner) volume.OwnerView { return volume.OwnerView{Life: volume.LifeRunning} }

func (w *ward) doctor() *Doctor {
	p := well()
	return New(Options{
		Root: csi, Records: w, Queue: w, Host: w, Notes: w, Guards: w, Owners: w, Halt: w.halt, Now: func() time.Time { return now },
		Database: func() Database { return p.Database }, Deregistered: func() []Deregistered { return nil }, Tests: func() []Test { return nil },
		Plugins: func(context.Context) []Plugin { return p.Plugins }, System: func(context.Context, bool) System { return p.System },
		Fstab: func() ([]fstab.Entry, error) { return nil, nil }, Unmet: func() []Unmet { return p.Unmet },
		Runtimes: func(context.Context) Runtimes { return p.Runtimes },
		Cluster: func(context.Context, []volume.Record) Cluster {
			if w.onCluster != nil {
				w.onCluster()
			}
			return w.cluster
		},
		CompareHolds: func() { w.compared++ },
	})
}

func ids(fs []Finding) (ids []string) {
	for _, f := range fs {
		ids = append(ids, f.ID)
	}
	return ids
}

// newWard returns a host that has the given leftovers, and one volume with two claims and no
// problems.
func newWard(leftovers ...string) *ward {
	w := &ward{records: map[string]volume.Record{"data": mounted().Record}, mounts: well().Mounts}
	for _, path := range leftovers {
		w.leftovers = append(w.leftovers, Leftover{Path: path, Contents: Contents{Kind: "directory", Empty: true}})
	}
	return w
}

// TestExamine checks that the Doctor reports nothing if a claim or a detach happens during the
// examination.
func TestExamine(t *testing.T) {
	stage, target := csi+"/p/staging/new", csi+"/p/per-alloc/a/new"
	coming := mounted().Record
	coming.Volume.ID, coming.Node.StagingPath = "new", stage
	c := coming.Claims["a"]
	c.Target = target
	coming.Claims = map[string]volume.Claim{"a": c}

	w := newWard()
	w.onLook = func() {
		w.records["new"] = coming
		w.mounts = append(well().Mounts, Mounted{Path: stage}, Mounted{Path: target})
		w.leftovers = []Leftover{{Path: stage}, {Path: csi + "/p/per-alloc/a"}}
	}
	if r := w.doctor().Examine(t.Context()); len(r.Findings) != 0 || r.Volumes != 1 || r.Claims != 2 || r.Plugins != 1 {
		t.Errorf("a claim that came: %+v", r)
	}

	// The claims are detached while the Doctor checks the mounts.
	w = newWard()
	w.missing = true
	w.onLook = func() {
		going := mounted().Record
		going.Generation++
		for alloc, c := range going.Claims {
			c.Wanted, c.State = false, volume.Unpublishing
			going.Claims[alloc] = c
		}
		w.records["data"] = going
	}
	if r := w.doctor().Examine(t.Context()); len(r.Findings) != 0 {
		t.Errorf("a claim that went: %q", ids(r.Findings))
	}
	w = newWard()
	w.missing = true
	if got := ids(w.doctor().Examine(t.Context()).Findings); !slices.Equal(got, []string{"mount-missing:" + csi + "/p/per-alloc/a/data"}) {
		t.Errorf("a mount that is missing: %q", got)
	}

	w = newWard()
	w.mounts = append(w.mounts, Mounted{Path: csi + "/p/staging/x"})
	if got := ids(w.doctor().Examine(t.Context()).Findings); !slices.Equal(got, []string{"mount-unexplained:" + csi + "/p/staging/x"}) {
		t.Errorf("one that stays: %q", got)
	}
}

// TestFix checks the outcome of a fix for several findings, including a finding that no longer
// exists.
func TestFix(t *testing.T) {
	empty, other := csi+"/p/staging/data2", csi+"/p/staging/other"
	w := newWard(empty, other)
	second := mounted().Record
	second.Volume.ID, second.Claims, second.Node = "data2", nil, volume.NodeSide{}
	third := second
	third.Volume.ID = "away"
	third.Node = volume.NodeSide{Staged: volume.Present, StagingPath: csi + "/p/staging/away", PendingCalls: []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/x"}}}
	w.records["data2"], w.records["away"] = second, third
	w.mounts = append(w.mounts, Mounted{Path: csi + "/p/staging/foreign"})
	w.notes = []NoteFile{{Path: "/n", Alloc: "z", Record: second}}
	ask := []string{
		"leftover-empty:" + empty, "leftover-empty:" + other, "mount-unexplained:" + csi + "/p/staging/foreign", "leftover-empty:/etc",
		"staged-unclaimed:away", "volume-pending-calls:away", "note-stray:/n",
	}
	var got []string
	for i, d := range w.doctor().Fix(t.Context(), ask) {
		if d.ID != ask[i] || d.Message == "" {
			t.Errorf("%+v", d)
		}
		got = append(got, d.Outcome)
	}
	if want := []string{Fixed, Fixed, Left, Gone, Asked, Asked, Fixed}; !slices.Equal(got, want) {
		t.Errorf("outcomes %q, want %q", got, want)
	}
	if !slices.Equal(w.removed, []string{empty, other}) || !slices.Equal(w.woken, []string{"away"}) || len(w.mended) != 1 {
		t.Errorf("removed %q, woken %q, mended %v", w.removed, w.woken, w.mended)
	}
	if !slices.Equal(w.alone, []string{"data2"}) {
		t.Errorf("alone with %q", w.alone)
	}
}

// TestFixRaces checks that the fix keeps a leftover if a new claim uses the path. It also checks
// that Fix reports the error of a failed fix, and tries no fix if the agent must not call plugins.
func TestFixRaces(t *testing.T) {
	empty := csi + "/p/staging/data2"
	w := newWard(empty)
	free := mounted().Record
	free.Volume.ID, free.Claims, free.Node = "data2", nil, volume.NodeSide{}
	w.records["data2"] = free
	w.onRemove = func() {
		r := mounted().Record
		r.Volume.ID, r.Node.StagingPath = "data2", empty
		w.records["data2"] = r
	}
	done := w.doctor().Fix(t.Context(), []string{"leftover-empty:" + empty})
	if len(w.removed) != 0 || done[0].Outcome != Failed || !strings.Contains(done[0].Message, "uses it now") {
		t.Errorf("a claim came: %+v, removed %q", done, w.removed)
	}

	w = newWard(csi + "/p/staging/x")
	w.failing = errors.New("it is a mount point")
	if done := w.doctor().Fix(t.Context(), []string{"leftover-empty:" + csi + "/p/staging/x"}); done[0].Outcome != Failed || done[0].Message != "it is a mount point" {
		t.Errorf("it fails: %+v", done)
	}

	w = newWard()
	r := w.records["data"]
	r.Node.PendingCalls = []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/x"}}
	w.records["data"], w.halt = r, "another namespace"
	if done := w.doctor().Fix(t.Context(), []string{"volume-pending-calls:data"}); done[0].Outcome != Failed || len(w.woken) != 0 {
		t.Errorf("halted: %+v, woken %q", done, w.woken)
	}
}

// TestFixGuards checks that the fix removes an unused guarded directory from all records that
// contain it, and that the Doctor locks the volume of each record. The fix must fail if a new claim
// uses the directory, or if the agent must not call plugins.
func TestFixGuards(t *testing.T) {
	ward := func() *ward {
		w := newWard()
		for _, id := range []string{"data", "data2"} {
			r := mounted().Record
			r.Volume.ID, r.Guards = id, []string{"/srv/b", "/srv/off", "/srv/x"}
			if id == "data2" {
				r.Claims, r.Node = nil, volume.NodeSide{}
			}
			w.records[id] = r
		}
		w.guarded = map[string]bool{"/srv/b": true, "/srv/x": true}
		return w
	}
	const stale = "guard-stale:/srv/x"
	w := ward()
	if got := ids(w.doctor().Examine(t.Context()).Findings); !slices.Equal(got, []string{stale}) {
		t.Errorf("found %q", got)
	}
	if done := w.doctor().Fix(t.Context(), []string{stale}); done[0].Outcome != Fixed {
		t.Errorf("%+v", done)
	}
	if !slices.Equal(w.lifted, []string{"/srv/x of data", "/srv/x of data2"}) || !slices.Equal(w.alone, []string{"data", "data2"}) {
		t.Errorf("lifted %q, alone with %q", w.lifted, w.alone)
	}

	w = ward()
	w.onRemove = func() {
		r := mounted().Record
		c := r.Claims["a"]
		c.At = "/srv/x"
		r.Volume.ID, r.Claims = "data2", map[string]volume.Claim{"a": c}
		w.records["data2"] = r
	}
	if done := w.doctor().Fix(t.Context(), []string{stale}); done[0].Outcome != Failed || !strings.Contains(done[0].Message, `claim of "a" on volume "data2"`) || len(w.lifted) != 0 {
		t.Errorf("a claim came: %+v, lifted %q", done, w.lifted)
	}

	w = ward()
	w.halt = "another namespace"
	if done := w.doctor().Fix(t.Context(), []string{stale}); done[0].Outcome != Failed || len(w.lifted) != 0 {
		t.Errorf("halted: %+v, lifted %q", done, w.lifted)
	}
}

// TestBounded checks that Run stops waiting for a function that takes too long. Run must not start
// another function until that function has ended.
func TestBounded(t *testing.T) {
	var b Bounded[int]
	release, ran := make(chan struct{}), make(chan struct{})
	slow := func() (int, error) { <-release; close(ran); return 1, nil }
	if _, err := b.Run(time.Millisecond, slow); !errors.Is(err, ErrSlow) {
		t.Errorf("the first: %v", err)
	}
	if _, err := b.Run(time.Hour, func() (int, error) { t.Error("it was asked again"); return 0, nil }); !errors.Is(err, ErrSlow) || !strings.Contains(err.Error(), "since") {
		t.Errorf("the second: %v", err)
	}
	close(release)
	<-ran
	for end := time.Now().Add(100 * time.Second); ; time.Sleep(time.Millisecond) {
		if got, err := b.Run(time.Hour, func() (int, error) { return 2, nil }); err == nil && got == 2 {
			return
		} else if time.Now().After(end) {
			t.Fatalf("afterwards: %d, %v", got, err)
		}
	}
}
