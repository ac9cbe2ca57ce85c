package localdriver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// These are the points that store.StateDir.Tap reports, grouped by the operation that reaches them.
var (
	makingPoints   = []string{"made", "filled", "written", "placed"}
	freezingPoints = []string{"noted", "frozen", "thawed"}
	copyingPoints  = []string{"copying"}
	deletingPoints = []string{"trashed"}
)

// TestKilledAtEveryPoint kills the driver at each point of each operation. After the next start,
// every listed object must be complete, and a listed group must have all its snapshots. If an
// object is not listed, a repeated call must make it again.
func TestKilledAtEveryPoint(t *testing.T) {
	b := newBenchOn(t, "xfs") // xfs can clone images in use
	fs, dir := mountCap(writer, "ext4"), mountCap(writer, "")
	one, two := b.create("one", 16*mib, image("ext4"), fs), b.create("two", 16*mib, image("ext4"), fs)
	files := b.create("files", 0, nil, dir)
	for _, id := range []string{one, two} {
		sandbox.Must(t, b.stage(id, fs))
		sandbox.Write(t, filepath.Join(b.staging(id), "f"), id)
	}
	sandbox.Write(t, filepath.Join(b.data(files), "f"), files)
	kept := b.snap("kept", files)
	all := []string{one, two, files}
	for _, ch := range changes(b, all, kept, dir) {
		for _, point := range ch.points {
			undo := ch.prepare()
			b.stop()
			died := b.dying(point)
			if err := ch.do(); err == nil {
				t.Errorf("%s at %q: it was done by a driver that was to die", ch.name, point)
			}
			died()
			b.start()
			b.wantAllWhole(all, dir)
			if err := ch.do(); err != nil {
				t.Errorf("%s again after %q: %v", ch.name, point, err)
			}
			undo()
			b.wantNothingHalf()
			for _, id := range []string{one, two} {
				// The write would hang if the filesystem were still frozen.
				sandbox.Write(t, filepath.Join(b.staging(id), "f"), id)
			}
		}
	}
	b.clear(one)
	b.clear(two)
}

// change is an operation that a crash can interrupt.
type change struct {
	name    string
	points  []string
	prepare func() (undo func())
	do      func() error
}

func changes(b *bench, all []string, kept string, c *csi.VolumeCapability) []change {
	nothing := func() func() { return func() {} }
	var doomed string
	return []change{
		{"create a snapshot", slices.Concat(makingPoints, freezingPoints), func() func() { return func() { sandbox.Must(b.t, b.unsnap(b.snap("s", all[0]))) } }, func() error {
			_, err := b.CreateSnapshot(background(), snapReq("s", all[0]))
			return err
		}},
		{"delete a snapshot", deletingPoints, func() func() { doomed = b.snap("doomed", all[2]); return func() {} }, func() error { return b.unsnap(doomed) }},
		{"create a group", slices.Concat(makingPoints, freezingPoints, copyingPoints, []string{"frozen 2", "thawed 2"}), func() func() {
			return func() { sandbox.Must(b.t, b.ungroup(b.group("g", all...).GetGroupSnapshotId())) }
		}, func() error {
			_, err := b.CreateVolumeGroupSnapshot(background(), groupReq("g", all...))
			return err
		}},
		{"delete a group", deletingPoints, func() func() { doomed = b.group("doomed", all...).GetGroupSnapshotId(); return func() {} }, func() error { return b.ungroup(doomed) }},
		{"restore", makingPoints, func() func() { return func() { sandbox.Must(b.t, b.delete(b.copyOf("r", fromSnap(kept), c))) } }, func() error {
			_, err := b.CreateVolume(background(), copyReq("r", fromSnap(kept), c))
			return err
		}},
		{"clone an image in use", slices.Concat(makingPoints, freezingPoints, deletingPoints), nothing, func() error {
			resp, err := b.CreateVolume(background(), copyReq("c", fromVolume(all[1]), mountCap(writer, "ext4")))
			if err == nil {
				err = b.delete(resp.GetVolume().GetVolumeId())
			}
			return err
		}},
	}
}

// wantAllWhole checks the listed snapshots and groups. It must be possible to restore each
// snapshot, the restored file must contain the name of the source, and each group must have all its
// snapshots.
func (b *bench) wantAllWhole(all []string, dir *csi.VolumeCapability) {
	b.t.Helper()
	resp, err := b.ListSnapshots(background(), &csi.ListSnapshotsRequest{})
	sandbox.Must(b.t, err)
	members := map[string]int{}
	for _, e := range resp.GetEntries() {
		s := e.GetSnapshot()
		if g := s.GetGroupSnapshotId(); g != "" {
			members[g]++
		}
		if s.GetSourceVolumeId() == all[2] {
			dup := b.copyOf("check", fromSnap(s.GetSnapshotId()), dir)
			sandbox.WantContent(b.t, filepath.Join(b.data(dup), "f"), all[2])
			sandbox.Must(b.t, b.delete(dup))
			continue
		}
		c := mountCap(writer, "ext4")
		dup := b.copyOf("check", fromSnap(s.GetSnapshotId()), c)
		sandbox.Must(b.t, b.stage(dup, c))
		sandbox.WantContent(b.t, filepath.Join(b.staging(dup), "f"), s.GetSourceVolumeId())
		b.clear(dup)
	}
	for g, n := range members {
		if n != len(all) {
			b.t.Errorf("group %s has %d snapshots of %d", g, n, len(all))
		}
	}
	groups, err := os.ReadDir(filepath.Join(b.state, store.DirGroups))
	sandbox.Must(b.t, err)
	if len(groups) != len(members) {
		b.t.Errorf("%d groups are on disk, %d are listed", len(groups), len(members))
	}
}
