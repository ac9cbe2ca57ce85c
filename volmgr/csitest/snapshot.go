package csitest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// snap is a snapshot as the plugin stores it.
type snap struct {
	ID      string    `json:"id"`
	Source  string    `json:"source"` // id of the source volume
	Group   string    `json:"group,omitempty"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	Asked   int       `json:"asked"` // number of answers about the snapshot until now; see Config.ReadyAfter
}

func (s *store) snapshotPath(id string, names ...string) string {
	return filepath.Join(append([]string{s.base, "snapshots", hash(id)}, names...)...)
}

// snapshot returns a snapshot, or a NotFound error.
func (s *store) snapshot(id string) (snap, error) {
	var one snap
	found, err := readJSON(s.snapshotPath(id, "snapshot.json"), &one)
	if err == nil && !found {
		err = status.Errorf(codes.NotFound, "no snapshot %q", id)
	}
	return one, err
}

func (s *store) snapshots() ([]snap, error) {
	return readAll[snap](filepath.Join(s.base, "snapshots"), "snapshot.json")
}

// take creates a snapshot, or returns the existing snapshot with the same id.
func (s *store) take(id, volume, group string) (snap, error) {
	one, err := s.snapshot(id)
	if err == nil && (one.Source != volume || one.Group != group) {
		return one, status.Errorf(codes.AlreadyExists, "snapshot %q is of volume %q", id, one.Source)
	}
	if status.Code(err) != codes.NotFound {
		return one, err
	}

	v, err := s.get(volume)
	if err != nil {
		return snap{}, err
	}

	one = snap{ID: id, Source: volume, Group: group, Size: v.Capacity, Created: now()}
	if err := copyContent(s.path(volume), s.snapshotPath(id)); err != nil {
		return snap{}, err
	}

	return one, writeJSON(s.snapshotPath(id, "snapshot.json"), one)
}

// dropSnapshot deletes a snapshot. It succeeds if the snapshot does not exist.
func (s *store) dropSnapshot(id string) error {
	return dropDir(s.snapshotPath(id), "snapshot.json")
}

// dropDir removes a directory. It removes the given file first, because a directory without this
// file counts as deleted.
func dropDir(dir, file string) error {
	if err := os.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeTree(dir)
}

// copyContent copies the content of a volume or snapshot to the directory to. If a killed plugin
// has left an incomplete copy there, copyContent removes it first.
func copyContent(from, to string) error {
	if err := removeTree(to); err != nil {
		return fmt.Errorf("cannot copy the volume: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("cannot copy the volume: %w", err)
	}
	if err := os.CopyFS(filepath.Join(to, "data"), os.DirFS(filepath.Join(from, "data"))); err != nil {
		return fmt.Errorf("cannot copy the volume: %w", err)
	}

	raw, err := os.ReadFile(filepath.Join(from, "block.img"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = os.WriteFile(filepath.Join(to, "block.img"), raw, 0o600)
	}

	if err != nil {
		return fmt.Errorf("cannot copy the volume: %w", err)
	}

	return nil
}

// ready reports whether a snapshot is ready, because the plugin has given enough answers about it.
func (p *Plugin) ready(s snap) bool {
	return p.cfg.ReadyAfter >= 0 && s.Asked > p.cfg.ReadyAfter
}

// asked counts one more answer about a snapshot, and returns the snapshot in the form of an answer.
func (p *Plugin) asked(s snap) (*csi.Snapshot, error) {
	s.Asked++
	out := &csi.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.Source, GroupSnapshotId: s.Group, SizeBytes: s.Size,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: p.ready(s)}
	return out, writeJSON(p.store.snapshotPath(s.ID, "snapshot.json"), s)
}

func (s *controller) CreateSnapshot(_ context.Context, m *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	id := s.p.newSnapshotID(m.GetName())
	if id == "" || m.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot needs a name and a source")
	}
	defer s.p.store.lock(m.GetSourceVolumeId(), snapshotLock(id))()
	one, err := s.p.store.take(id, m.GetSourceVolumeId(), "")
	if err != nil {
		return nil, err
	}

	out, err := s.p.asked(one)
	return &csi.CreateSnapshotResponse{Snapshot: out}, err
}

func (s *controller) DeleteSnapshot(_ context.Context, m *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := m.GetSnapshotId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "no snapshot id is given")
	}
	defer s.p.store.lock(snapshotLock(id))()
	if one, err := s.p.store.snapshot(id); err == nil && one.Group != "" {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot %q is part of group snapshot %q", id, one.Group)
	}

	return &csi.DeleteSnapshotResponse{}, s.p.store.dropSnapshot(id)
}

func (s *controller) GetSnapshot(_ context.Context, m *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	defer s.p.store.lock(snapshotLock(m.GetSnapshotId()))()
	one, err := s.p.store.snapshot(m.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	out, err := s.p.asked(one)
	return &csi.GetSnapshotResponse{Snapshot: out}, err
}

// ListSnapshots lists snapshots. If no snapshot matches the filter, the list is empty.
func (s *controller) ListSnapshots(_ context.Context, m *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all, err := s.p.store.snapshots()
	if err != nil {
		return nil, err
	}

	all = slices.DeleteFunc(all, func(one snap) bool {
		return m.GetSnapshotId() != "" && m.GetSnapshotId() != one.ID || m.GetSourceVolumeId() != "" && m.GetSourceVolumeId() != one.Source
	})
	some, next, err := page(s.p.cfg, all, func(one snap) string { return one.ID }, m)
	if err != nil {
		return nil, err
	}

	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, listed := range some {
		out, err := s.listed(listed.ID)
		switch {
		case status.Code(err) == codes.NotFound: // the snapshot has just been deleted by another call
		case err != nil:
			return nil, err
		default:
			resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: out})
		}
	}

	return resp, nil
}

func (s *controller) listed(id string) (*csi.Snapshot, error) {
	defer s.p.store.lock(snapshotLock(id))()
	one, err := s.p.store.snapshot(id)
	if err != nil {
		return nil, err
	}
	return s.p.asked(one)
}
