package csitest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type group struct {
	csi.UnimplementedGroupControllerServer
	p *Plugin
}

// snapGroup is a group snapshot as the plugin stores it.
type snapGroup struct {
	ID      string    `json:"id"`
	Sources []string  `json:"sources"` // ids of the volumes, in sorted order
	Members []string  `json:"members"` // ids of the snapshots, one for each source
	Created time.Time `json:"created"`
}

func (s *store) groupPath(id string, names ...string) string {
	return filepath.Join(append([]string{s.base, "groups", hash(id)}, names...)...)
}

// group returns a group snapshot, or a NotFound error.
func (s *store) group(id string) (snapGroup, error) {
	var g snapGroup
	found, err := readJSON(s.groupPath(id, "group.json"), &g)
	if err == nil && !found {
		err = status.Errorf(codes.NotFound, "no group snapshot %q", id)
	}
	return g, err
}

// groupLocks returns the ids that a call must lock before it changes a group: those of the group,
// its members and their sources.
func groupLocks(id string, members, sources []string) []string {
	locks := append([]string{snapshotLock("group " + id)}, sources...)
	for _, one := range members {
		locks = append(locks, snapshotLock(one))
	}
	return locks
}

// CreateVolumeGroupSnapshot creates all snapshots of a group, or none of them. After a failure, it
// deletes the snapshots that it has already created.
func (s *group) CreateVolumeGroupSnapshot(_ context.Context, m *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	g := snapGroup{ID: s.p.newSnapshotID(m.GetName()), Sources: slices.Sorted(slices.Values(m.GetSourceVolumeIds())), Created: now()}
	if g.ID == "" || len(g.Sources) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a group snapshot needs a name and sources")
	}

	for _, source := range g.Sources {
		g.Members = append(g.Members, g.ID+"-"+hash(source))
	}

	defer s.p.store.lock(groupLocks(g.ID, g.Members, g.Sources)...)()
	switch old, err := s.p.store.group(g.ID); {
	case err == nil && !slices.Equal(old.Sources, g.Sources):
		return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q is of volumes %q", g.ID, old.Sources)
	case err == nil:
		g = old
	case status.Code(err) != codes.NotFound:
		return nil, err
	default:
		if err := s.p.store.takeAll(g); err != nil {
			return nil, err
		}
	}

	out, err := s.answer(g)
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: out}, err
}

func (s *store) takeAll(g snapGroup) error {
	for i, source := range g.Sources {
		if _, err := s.take(g.Members[i], source, g.ID); err != nil {
			for _, taken := range g.Members[:i] {
				err = errors.Join(err, s.dropSnapshot(taken))
			}
			return err
		}
	}

	if err := os.MkdirAll(s.groupPath(g.ID), 0o755); err != nil {
		return err
	}

	return writeJSON(s.groupPath(g.ID, "group.json"), g)
}

// answer describes the group with the current state of each snapshot.
func (s *group) answer(g snapGroup) (*csi.VolumeGroupSnapshot, error) {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Created), ReadyToUse: true}
	for _, id := range g.Members {
		one, err := s.p.store.snapshot(id)
		if err != nil {
			return nil, err
		}

		member, err := s.p.asked(one)
		if err != nil {
			return nil, err
		}

		out.Snapshots = append(out.Snapshots, member)
		out.ReadyToUse = out.ReadyToUse && member.ReadyToUse
	}

	return out, nil
}

// named returns an error unless the caller's list contains exactly the members of the group.
func (g snapGroup) named(members []string) error {
	if !slices.Equal(slices.Sorted(slices.Values(members)), slices.Sorted(slices.Values(g.Members))) {
		return status.Errorf(codes.InvalidArgument, "group snapshot %q has the snapshots %q and not %q", g.ID, g.Members, members)
	}
	return nil
}

func (s *group) DeleteVolumeGroupSnapshot(_ context.Context, m *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if m.GetGroupSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no group snapshot id is given")
	}
	defer s.p.store.lock(groupLocks(m.GetGroupSnapshotId(), m.GetSnapshotIds(), nil)...)()
	resp := &csi.DeleteVolumeGroupSnapshotResponse{}
	g, err := s.p.store.group(m.GetGroupSnapshotId())
	if status.Code(err) == codes.NotFound {
		return resp, nil
	}
	if err == nil {
		err = g.named(m.GetSnapshotIds())
	}
	if err != nil {
		return nil, err
	}

	for _, id := range g.Members {
		if err := s.p.store.dropSnapshot(id); err != nil {
			return nil, err
		}
	}

	return resp, dropDir(s.p.store.groupPath(g.ID), "group.json")
}

func (s *group) GetVolumeGroupSnapshot(_ context.Context, m *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	defer s.p.store.lock(groupLocks(m.GetGroupSnapshotId(), m.GetSnapshotIds(), nil)...)()
	g, err := s.p.store.group(m.GetGroupSnapshotId())
	if err == nil {
		err = g.named(m.GetSnapshotIds())
	}
	if err != nil {
		return nil, err
	}

	out, err := s.answer(g)
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: out}, err
}
