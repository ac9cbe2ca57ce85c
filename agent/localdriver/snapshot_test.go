package localdriver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// TestSnapshotDirectory makes snapshots of a directory volume, restores them, and deletes source,
// snapshots and copies.
func TestSnapshotDirectory(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	src := b.create("src", 5000, asDirectory, c)
	other := b.create("other", 0, nil, c)
	sandbox.Write(t, filepath.Join(b.data(src), "f"), "one")
	id := b.snap("s", src)
	sandbox.Write(t, filepath.Join(b.data(src), "f"), "two")

	// A second request with the same name returns the same snapshot.
	if again := b.snap("s", src); again != id {
		t.Errorf("asked again: %q, before %q", again, id)
	}
	_, err := b.CreateSnapshot(background(), snapReq("s", other))
	sandbox.WantCode(t, err, codes.AlreadyExists, src, other)
	b.restart()
	if again := b.snap("s", src); again != id {
		t.Errorf("after a restart: %q, before %q", again, id)
	}

	got, err := b.GetSnapshot(background(), &csi.GetSnapshotRequest{SnapshotId: id})
	sandbox.Must(t, err)
	if s := got.GetSnapshot(); s.GetSizeBytes() != 5000 || s.GetSourceVolumeId() != src || !s.GetReadyToUse() ||
		time.Since(s.GetCreationTime().AsTime()) > time.Hour || s.GetGroupSnapshotId() != "" {
		t.Errorf("got %v", s)
	}

	// Source, snapshot and copy must be independent. Delete the source, then make a copy of the
	// snapshot, then delete the snapshot.
	sandbox.Must(t, b.delete(src))
	vol := b.copyOf("copy", fromSnap(id), c)
	sandbox.WantContent(t, filepath.Join(b.data(vol), "f"), "one")
	sandbox.Must(t, b.unsnap(id))
	sandbox.Must(t, b.unsnap(id))
	if again := b.copyOf("copy", fromSnap(id), c); again != vol {
		t.Errorf("asked again with the source gone: %q, before %q", again, vol)
	}
	second := b.copyOf("second", fromVolume(vol), c)
	sandbox.WantContent(t, filepath.Join(b.data(second), "f"), "one")
	_, err = b.CreateVolume(background(), copyReq("second", fromVolume(other), c))
	sandbox.WantCode(t, err, codes.AlreadyExists, vol, other)
	_, err = b.CreateVolume(background(), copyReq("second", nil, c))
	sandbox.WantCode(t, err, codes.AlreadyExists, vol)
	for _, v := range []string{vol, second, other} {
		sandbox.Must(t, b.delete(v))
	}
	b.wantNothingHalf()
}

// TestSnapshotRefusals makes requests that the driver must refuse.
func TestSnapshotRefusals(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	src := b.create("src", 5000, asDirectory, c)
	id := b.snap("s", src)
	for what, try := range map[string]struct {
		req   *csi.CreateSnapshotRequest
		code  codes.Code
		words string
	}{
		"no name":        {snapReq("", src), codes.InvalidArgument, "name is empty"},
		"control":        {snapReq("a\nb", src), codes.InvalidArgument, "control"},
		"no source":      {snapReq("x", ""), codes.InvalidArgument, "source volume id"},
		"unknown source": {snapReq("x", store.NewID()), codes.NotFound, "no volume"},
		"a path":         {snapReq("x", "../../etc"), codes.NotFound, "no volume"},
		"parameter":      {&csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: src, Parameters: map[string]string{"speed": "1"}}, codes.InvalidArgument, "consistency"},
		"value":          {&csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: src, Parameters: map[string]string{"consistency": "no"}}, codes.InvalidArgument, "per-file"},
	} {
		_, err := b.CreateSnapshot(background(), try.req)
		if sandbox.WantCode(t, err, try.code, try.words); t.Failed() {
			t.Fatal(what)
		}
	}
	limited := copyReq("x", fromSnap(id), c)
	limited.CapacityRange = &csi.CapacityRange{LimitBytes: 4000}
	typed := copyReq("x", fromSnap(id), c)
	typed.Parameters = map[string]string{store.ParamType: store.TypeImage}
	for what, try := range map[string]struct {
		req   *csi.CreateVolumeRequest
		code  codes.Code
		words string
	}{
		"no snapshot":  {copyReq("x", fromSnap(store.NewIDOf(store.SnapPrefix)), c), codes.NotFound, "no snapshot"},
		"no volume":    {copyReq("x", fromVolume(store.NewID()), c), codes.NotFound, "no volume"},
		"empty":        {copyReq("x", &csi.VolumeContentSource{}, c), codes.InvalidArgument, "neither"},
		"a path":       {copyReq("x", fromSnap("../x"), c), codes.NotFound, "no snapshot"},
		"too small":    {limited, codes.OutOfRange, "5000"},
		"other type":   {typed, codes.InvalidArgument, "the same"},
		"block":        {copyReq("x", fromSnap(id), blockCap(writer)), codes.InvalidArgument, "block"},
		"a filesystem": {copyReq("x", fromSnap(id), mountCap(writer, "ext4")), codes.InvalidArgument, "fs_type"},
	} {
		_, err := b.CreateVolume(background(), try.req)
		if sandbox.WantCode(t, err, try.code, try.words); t.Failed() {
			t.Fatal(what)
		}
	}
	_, err := b.GetSnapshot(background(), &csi.GetSnapshotRequest{SnapshotId: store.NewIDOf(store.SnapPrefix)})
	sandbox.WantCode(t, err, codes.NotFound, "no snapshot")
	sandbox.WantCode(t, b.unsnap(""), codes.InvalidArgument, "empty")
	sandbox.Must(t, b.unsnap("../../volumes/"+src))
	sandbox.Must(t, b.unsnap(store.NewIDOf(store.SnapPrefix)))
	if got := b.listed(); !slices.Equal(got, []string{src}) {
		t.Errorf("listed %v", got)
	}
	b.wantNothingHalf()
}

func TestListSnapshots(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	v1, v2 := b.create("v1", 0, nil, c), b.create("v2", 0, nil, c)
	all := sandbox.Sorted(b.snap("a", v1), b.snap("b", v2), b.snap("c", v1))
	if got := b.snapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(got, all) {
		t.Errorf("listed %v, want %v", got, all)
	}
	if got := b.snapshots(&csi.ListSnapshotsRequest{SourceVolumeId: v1}); len(got) != 2 {
		t.Errorf("of %s: %v", v1, got)
	}
	if got := b.snapshots(&csi.ListSnapshotsRequest{SnapshotId: all[1]}); !slices.Equal(got, all[1:2]) {
		t.Errorf("%s: %v", all[1], got)
	}
	for _, req := range []*csi.ListSnapshotsRequest{{SnapshotId: "x"}, {SourceVolumeId: "x"}} {
		if got := b.snapshots(req); len(got) != 0 {
			t.Errorf("%v: %v", req, got)
		}
	}
	var pages []string
	for token := ""; ; {
		resp, err := b.ListSnapshots(background(), &csi.ListSnapshotsRequest{MaxEntries: 1, StartingToken: token})
		sandbox.Must(t, err)
		for _, e := range resp.GetEntries() {
			pages = append(pages, e.GetSnapshot().GetSnapshotId())
		}
		if token = resp.GetNextToken(); token == "" {
			break
		}
	}
	if !slices.Equal(pages, all) {
		t.Errorf("by pages %v, want %v", pages, all)
	}
	_, err := b.ListSnapshots(background(), &csi.ListSnapshotsRequest{StartingToken: "nonsense"})
	sandbox.WantCode(t, err, codes.Aborted, "start again")
	_, err = b.ListSnapshots(background(), &csi.ListSnapshotsRequest{MaxEntries: -1})
	sandbox.WantCode(t, err, codes.InvalidArgument, "max_entries")
}

// TestBrokenSnapshot damages the metadata of one snapshot. The other snapshots must still work, and
// the data of the damaged snapshot must remain.
func TestBrokenSnapshot(t *testing.T) {
	b := newBench(t)
	v := b.create("v", 0, nil, mountCap(writer, ""))
	sandbox.Write(t, filepath.Join(b.data(v), "f"), "precious")
	bad, good := b.snap("bad", v), b.snap("good", v)
	dir := filepath.Join(b.state, store.DirSnapshots, bad)
	for _, text := range []string{"", "{", `{"version":2}`, `{"version":1,"id":"` + good + `","type":"directory"}`} {
		sandbox.Write(t, filepath.Join(dir, store.SnapFile), text)
		b.restart()
		if got := b.snapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(got, []string{good}) {
			t.Errorf("%q: listed %v", text, got)
		}
		sandbox.WantCode(t, b.unsnap(bad), codes.Internal, bad)
		sandbox.WantContent(t, filepath.Join(dir, store.DataDir, "f"), "precious")
	}
}

// TestSnapshotOfDirectoryInUse checks that the driver refuses a snapshot whose data could be
// inconsistent. The driver must make such a snapshot only if the request permits it.
func TestSnapshotOfDirectoryInUse(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	sandbox.Write(t, filepath.Join(b.data(id), "f"), "text")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, b.path("t"), c, false))
	_, err := b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "detach it first", "consistency: per-file", b.path("t")[:4])
	_, err = b.CreateVolume(background(), copyReq("c", fromVolume(id), c))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "detach it first")
	b.wantNothingHalf()
	req := snapReq("s", id)
	req.Parameters = map[string]string{request.ParamConsistency: request.ConsistencyPerFile}
	resp, err := b.CreateSnapshot(background(), req)
	sandbox.Must(t, err)
	sandbox.WantContent(t, filepath.Join(b.state, store.DirSnapshots, resp.GetSnapshot().GetSnapshotId(), store.DataDir, "f"), "text")
	sandbox.Must(t, b.unpublish(id, b.path("t")))
	sandbox.Must(t, b.unstage(id))

	// A volume that is mounted read-only has no writers.
	ro := mountCap(writer, "", "ro")
	sandbox.Must(t, b.stage(id, ro))
	b.snap("while read-only", id)
	b.clear(id)
}

// TestSlowCopy blocks a copy halfway. The call must return the progress. Until the copy ends, the
// driver must allow the volume to be unpublished and unstaged, but not to be staged or deleted.
// When the copy has ended, a repeated call must return the result.
func TestSlowCopy(t *testing.T) {
	g := newGate("copying")
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	sandbox.Write(t, filepath.Join(b.data(id), "f"), strings.Repeat("x", 5000))
	b.patience = 50 * time.Millisecond
	b.restartOn(g.tap)
	_, err := b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.Aborted, `snapshot "s"`, "ask again")
	<-g.reached
	_, err = b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.Aborted, "ask again")
	other := b.create("other", 0, nil, c)
	_, err = b.CreateSnapshot(background(), snapReq("s", other))
	sandbox.WantCode(t, err, codes.Aborted, "another request", "with other arguments")
	sandbox.WantCode(t, b.stage(id, c), codes.Aborted, "being copied")
	sandbox.WantCode(t, b.delete(id), codes.Aborted, "being copied")
	sandbox.Must(t, b.unstage(id))
	if got := b.snapshots(&csi.ListSnapshotsRequest{}); len(got) > 0 {
		t.Errorf("a half-made snapshot is listed: %v", got)
	}
	close(g.open)
	sandbox.Await(t, "the copy is done", func() bool { return len(b.snapshots(&csi.ListSnapshotsRequest{})) == 1 })
	snap := b.snap("s", id)
	sandbox.Must(t, b.delete(id))
	sandbox.WantContent(t, filepath.Join(b.state, store.DirSnapshots, snap, store.DataDir, "f"), strings.Repeat("x", 5000))
}

// TestStopWhileCopying stops the driver during copies. Nothing of the copies may remain in the
// state directory.
func TestStopWhileCopying(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	sandbox.Write(t, filepath.Join(b.data(id), "f"), "text")
	g := newGate("copying")
	b.restartOn(g.tap)
	failed := make(chan error, 1)
	go func() {
		_, err := b.CreateVolume(background(), copyReq("copy", fromVolume(id), c))
		failed <- err
	}()
	<-g.reached
	stopped := make(chan struct{})
	go func() { b.stop(); close(stopped) }()
	sandbox.Await(t, "the driver is stopping", func() bool {
		_, err := os.Lstat(b.path("csi.sock"))
		return err != nil
	})
	close(g.open)
	<-stopped
	if err := <-failed; err == nil {
		t.Error("the copy was made although the driver was stopped")
	}
	b.tap = nil
	b.start()
	b.wantNothingHalf()
	if got := b.listed(); !slices.Equal(got, []string{id}) {
		t.Errorf("listed %v", got)
	}
}
