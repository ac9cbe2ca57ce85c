package localdriver

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func groupReq(name string, sources ...string) *csi.CreateVolumeGroupSnapshotRequest {
	return &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: sources}
}

func (b *bench) group(name string, sources ...string) *csi.VolumeGroupSnapshot {
	b.t.Helper()
	resp, err := b.CreateVolumeGroupSnapshot(background(), groupReq(name, sources...))
	sandbox.Must(b.t, err)
	return resp.GetGroupSnapshot()
}

func (b *bench) ungroup(id string, snapshots ...string) error {
	_, err := b.DeleteVolumeGroupSnapshot(background(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snapshots})
	return err
}

func memberIDs(g *csi.VolumeGroupSnapshot) []string {
	var ids []string
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return sandbox.Sorted(ids...)
}

// TestGroupSnapshot follows a group of two directories from its creation to its deletion.
func TestGroupSnapshot(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	one, two := b.create("one", 100, asDirectory, c), b.create("two", 0, nil, c)
	sandbox.Write(t, filepath.Join(b.data(one), "f"), "1")
	sandbox.Write(t, filepath.Join(b.data(two), "f"), "2")
	g := b.group("g", two, one)
	if !g.GetReadyToUse() || len(g.GetSnapshots()) != 2 {
		t.Fatalf("got %v", g)
	}
	b.restart()
	if again := b.group("g", one, two); again.GetGroupSnapshotId() != g.GetGroupSnapshotId() {
		t.Errorf("asked again: %v", again)
	}
	if got := b.snapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(got, memberIDs(g)) {
		t.Errorf("listed %v, want %v", got, memberIDs(g))
	}
	got, err := b.GetVolumeGroupSnapshot(background(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: memberIDs(g)})
	sandbox.Must(t, err)
	if !slices.Equal(memberIDs(got.GetGroupSnapshot()), memberIDs(g)) {
		t.Errorf("got %v", got)
	}
	sandbox.Must(t, b.delete(one))
	sandbox.Must(t, b.delete(two))
	for _, s := range g.GetSnapshots() {
		if s.GetGroupSnapshotId() != g.GetGroupSnapshotId() || !s.GetReadyToUse() {
			t.Errorf("a member is %v", s)
		}
		sandbox.WantCode(t, b.unsnap(s.GetSnapshotId()), codes.InvalidArgument, g.GetGroupSnapshotId())
		dup := b.copyOf("from-"+s.GetSourceVolumeId(), fromSnap(s.GetSnapshotId()), c)
		sandbox.WantContent(t, filepath.Join(b.data(dup), "f"), map[string]string{one: "1", two: "2"}[s.GetSourceVolumeId()])
	}
	sandbox.WantCode(t, b.ungroup(g.GetGroupSnapshotId(), memberIDs(g)[0]), codes.InvalidArgument, memberIDs(g)[1])
	sandbox.Must(t, b.ungroup(g.GetGroupSnapshotId(), memberIDs(g)...))
	sandbox.Must(t, b.ungroup(g.GetGroupSnapshotId(), memberIDs(g)...))
	if got := b.snapshots(&csi.ListSnapshotsRequest{}); len(got) > 0 {
		t.Errorf("listed %v", got)
	}
	b.wantNothingHalf()
}

func TestGroupRefusals(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	one, two := b.create("one", 0, nil, c), b.create("two", 0, nil, c)
	g := b.group("g", one)
	for what, try := range map[string]struct {
		req   *csi.CreateVolumeGroupSnapshotRequest
		code  codes.Code
		words string
	}{
		"no name":      {groupReq("", one), codes.InvalidArgument, "name is empty"},
		"no source":    {groupReq("x"), codes.InvalidArgument, "no source"},
		"twice":        {groupReq("x", one, two, one), codes.InvalidArgument, "twice"},
		"one is gone":  {groupReq("x", one, store.NewID()), codes.NotFound, "no volume"},
		"other source": {groupReq("g", two), codes.AlreadyExists, two},
		"one more":     {groupReq("g", one, two), codes.AlreadyExists, two},
		"parameter":    {&csi.CreateVolumeGroupSnapshotRequest{Name: "x", SourceVolumeIds: []string{one}, Parameters: map[string]string{"a": "b"}}, codes.InvalidArgument, "consistency"},
	} {
		_, err := b.CreateVolumeGroupSnapshot(background(), try.req)
		if sandbox.WantCode(t, err, try.code, try.words); t.Failed() {
			t.Fatal(what)
		}
	}
	// If one volume of the group cannot be copied now, the driver makes no snapshot of any of them.
	sandbox.Must(t, b.stage(two, c))
	_, err := b.CreateVolumeGroupSnapshot(background(), groupReq("x", one, two))
	sandbox.WantCode(t, err, codes.FailedPrecondition, two, "detach it first")
	sandbox.Must(t, b.unstage(two))
	if got := b.snapshots(&csi.ListSnapshotsRequest{}); !slices.Equal(got, memberIDs(g)) {
		t.Errorf("listed %v", got)
	}
	_, err = b.GetVolumeGroupSnapshot(background(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: store.NewIDOf(store.GroupPrefix)})
	sandbox.WantCode(t, err, codes.NotFound, "no group")
	_, err = b.GetVolumeGroupSnapshot(background(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: []string{"x"}})
	sandbox.WantCode(t, err, codes.InvalidArgument, g.GetGroupSnapshotId())
	sandbox.WantCode(t, b.ungroup(""), codes.InvalidArgument, "empty")
	sandbox.Must(t, b.ungroup("../x"))
	b.wantNothingHalf()
}
