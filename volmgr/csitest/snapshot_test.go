package csitest

import (
	"os"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// TestSnapshot checks that a snapshot keeps the content that the volume had when the snapshot was
// created. The snapshot must become ready after enough answers, and must survive a restart.
func TestSnapshot(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.ReadyAfter, c.AnyVolume = 2, false }))
	_, err := b.create("a", gib, nil)
	b.must(err)
	file := b.p.store.path("a", "data", "file")
	b.must(os.WriteFile(file, []byte("then"), 0o600))
	first, err := b.snap("a", "s")
	if err != nil || first.ReadyToUse || first.SizeBytes != gib || first.SourceVolumeId != "a" {
		t.Errorf("%v, %v", first, err)
	}
	b.must(os.WriteFile(file, []byte("now"), 0o600))
	b.restart()
	got, err := b.controller().GetSnapshot(b.ctx(), &csi.GetSnapshotRequest{SnapshotId: first.SnapshotId})
	if err != nil || got.Snapshot.ReadyToUse || !got.Snapshot.CreationTime.AsTime().Equal(first.CreationTime.AsTime()) {
		t.Errorf("%v, %v", got, err)
	}
	again, err := b.snap("a", "s")
	if err != nil || !again.ReadyToUse || again.SnapshotId != first.SnapshotId {
		t.Errorf("%v, %v", again, err)
	}
	made, err := b.create("b", 0, snapshotSource(first.SnapshotId))
	if err != nil || made.CapacityBytes != gib || made.ContentSource.GetSnapshot().GetSnapshotId() != first.SnapshotId {
		t.Errorf("%v, %v", made, err)
	}
	if raw, err := os.ReadFile(b.p.store.path("b", "data", "file")); err != nil || string(raw) != "then" {
		t.Errorf("%q, %v", raw, err)
	}
	_, err = b.snap("b", "s")
	b.code(codes.AlreadyExists, err)
	_, err = b.snap("none", "u")
	b.code(codes.NotFound, err)
	_, err = b.create("c", 0, snapshotSource("none"))
	b.code(codes.NotFound, err)
	for range 2 {
		_, err = b.controller().DeleteSnapshot(b.ctx(), &csi.DeleteSnapshotRequest{SnapshotId: first.SnapshotId})
		b.must(err)
	}
	_, err = b.controller().GetSnapshot(b.ctx(), &csi.GetSnapshotRequest{SnapshotId: first.SnapshotId})
	b.code(codes.NotFound, err)
	b.noViolations()
}

func TestListSnapshots(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.PageSize = 2 }))
	for _, s := range [][2]string{{"a", "1"}, {"b", "2"}, {"a", "3"}} {
		_, err := b.snap(s[0], s[1])
		b.must(err)
	}
	list := func(r *csi.ListSnapshotsRequest) (ids []string, next string) {
		resp, err := b.controller().ListSnapshots(b.ctx(), r)
		b.must(err)
		for _, e := range resp.Entries {
			ids = append(ids, e.Snapshot.SnapshotId)
		}
		return ids, resp.NextToken
	}
	ids, next := list(&csi.ListSnapshotsRequest{})
	more, last := list(&csi.ListSnapshotsRequest{StartingToken: next})
	if !slices.Equal(append(ids, more...), []string{"snap-1", "snap-2", "snap-3"}) || last != "" {
		t.Errorf("%v, %v, %q", ids, more, last)
	}
	if ids, _ := list(&csi.ListSnapshotsRequest{SourceVolumeId: "a"}); !slices.Equal(ids, []string{"snap-1", "snap-3"}) {
		t.Errorf("of volume a: %v", ids)
	}
	if ids, _ := list(&csi.ListSnapshotsRequest{SnapshotId: "snap-2"}); !slices.Equal(ids, []string{"snap-2"}) {
		t.Errorf("that one: %v", ids)
	}
	if ids, _ := list(&csi.ListSnapshotsRequest{SnapshotId: "none"}); len(ids) != 0 {
		t.Errorf("none: %v", ids)
	}
	b.noViolations()
	_, err := b.controller().ListSnapshots(b.ctx(), &csi.ListSnapshotsRequest{StartingToken: "after-x"})
	b.code(codes.Aborted, err)
}

func TestGroupSnapshot(t *testing.T) {
	b := start(t, with(whole, func(c *Config) { c.ReadyAfter, c.AnyVolume, c.Volumes = 1, false, []string{"a", "b"} }))
	caps, err := b.groups().GroupControllerGetCapabilities(b.ctx(), &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil || len(caps.Capabilities) != 1 {
		t.Errorf("%v, %v", caps, err)
	}
	_, err = b.group("g", "a", "none")
	b.code(codes.NotFound, err)
	if left, err := b.p.store.snapshots(); err != nil || len(left) != 0 {
		t.Errorf("half a group: %v, %v", left, err)
	}
	g, err := b.group("g", "a", "b")
	if err != nil || g.ReadyToUse || len(g.Snapshots) != 2 || g.Snapshots[0].GroupSnapshotId != g.GroupSnapshotId {
		t.Errorf("%v, %v", g, err)
	}
	b.restart()
	members := []string{g.Snapshots[1].SnapshotId, g.Snapshots[0].SnapshotId}
	got, err := b.groups().GetVolumeGroupSnapshot(b.ctx(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GroupSnapshotId, SnapshotIds: members})
	if err != nil || !got.GroupSnapshot.ReadyToUse {
		t.Errorf("%v, %v", got, err)
	}
	_, err = b.group("g", "a")
	b.code(codes.AlreadyExists, err)
	for range 2 {
		_, err = b.groups().DeleteVolumeGroupSnapshot(b.ctx(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GroupSnapshotId, SnapshotIds: members})
		b.must(err)
	}
	_, err = b.groups().GetVolumeGroupSnapshot(b.ctx(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GroupSnapshotId, SnapshotIds: members})
	b.code(codes.NotFound, err)
	if left, err := b.p.store.snapshots(); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	b.noViolations()
}
