package localdriver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	snapPrefix  = "snap-"
	groupPrefix = "grp-"

	snapFile  = "snapshot.json"
	groupFile = "group.json"
)

// errNoSnapshot is returned for an id that no snapshot, or no group, has.
var errNoSnapshot = errors.New("no such snapshot")

// snapshot is the content of snapshot.json, and of each member in group.json. A snapshot is a full
// copy. It needs neither its source nor other snapshots.
type snapshot struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"` // empty for a member of a group
	Source  string    `json:"source"`         // a volume id; the volume may be deleted
	Group   string    `json:"group,omitempty"`
	Type    string    `json:"type"`
	FSType  string    `json:"fs_type,omitempty"`
	Block   bool      `json:"block"`
	Size    int64     `json:"size_bytes"` // the capacity of the source then; 0 for a directory without one
	Created time.Time `json:"created"`
}

// group is the content of group.json. One file lists all snapshots of the group.
type group struct {
	Version   int        `json:"version"`
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Created   time.Time  `json:"created"`
	Snapshots []snapshot `json:"snapshots"`
}

// newSnapshot describes a snapshot of a volume as it is now.
func newSnapshot(name, groupID string, v volume) snapshot {
	return snapshot{Version: metaVersion, ID: newIDOf(snapPrefix), Name: name, Source: v.ID, Group: groupID,
		Type: v.Type, FSType: v.FSType, Block: v.Block, Size: v.Capacity, Created: time.Now().UTC()}
}

func (s snapshot) csi() *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, GroupSnapshotId: s.Group,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: true}
}

func (g group) csi() *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Created), ReadyToUse: true}
	for _, s := range g.Snapshots {
		out.Snapshots = append(out.Snapshots, s.csi())
	}
	return out
}

// contentName returns the name of a volume's data inside its directory.
func contentName(typ string) string {
	if typ == typeImage {
		return imageFile
	}
	return dataDir
}

// snapshotData returns the path of a snapshot's directory or image file.
func (s *store) snapshotData(snap snapshot) string {
	if snap.Group != "" {
		return s.path(dirGroups, snap.Group, snap.ID, contentName(snap.Type))
	}
	return s.path(dirSnapshots, snap.ID, contentName(snap.Type))
}

func (s *store) loadSnapshots() {
	for _, id := range s.entries(dirSnapshots, func(n string) bool { return validIDOf(snapPrefix, n) }) {
		var snap snapshot
		err := readMeta(s.path(dirSnapshots, id, snapFile), &snap)
		if err == nil {
			err = snap.check(id, "")
		}
		if err != nil {
			s.keepBroken(id, err)
			continue
		}

		s.snaps[id], s.snapNames[snap.Name] = snap, id
	}

	for _, id := range s.entries(dirGroups, func(n string) bool { return validIDOf(groupPrefix, n) }) {
		var g group
		err := readMeta(s.path(dirGroups, id, groupFile), &g)
		if err == nil {
			err = g.check(id)
		}
		if err != nil {
			s.keepBroken(id, err)
			continue
		}

		s.learnGroup(g)
	}
}

// keepBroken records a snapshot that cannot be used. It keeps the data, which may be the only copy.
func (s *store) keepBroken(id string, err error) {
	s.log.Error("cannot use a snapshot; its data is left alone", "id", id, "error", err)
	s.brokenSnaps[id] = fmt.Errorf("cannot use %q: %w", id, err)
}

func readMeta(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (s snapshot) check(id, groupID string) error {
	if s.Version != metaVersion || s.ID != id || !validIDOf(snapPrefix, id) || s.Group != groupID ||
		(s.Type != typeDirectory && s.Type != typeImage) {
		return fmt.Errorf("unexpected version %d, id %q, group %q or type %q", s.Version, s.ID, s.Group, s.Type)
	}
	return nil
}

func (g group) check(id string) error {
	if g.Version != metaVersion || g.ID != id {
		return fmt.Errorf("unexpected version %d or id %q", g.Version, g.ID)
	}
	for _, s := range g.Snapshots {
		if err := s.check(s.ID, id); err != nil {
			return err
		}
	}
	return nil
}

// addSnapshot makes a snapshot. fill copies the data into the directory it receives, and syncs it.
func (s *store) addSnapshot(ctx context.Context, snap snapshot, fill func(dir string) error) error {
	if err := s.place(ctx, snap.ID, dirSnapshots, snapFile, snap, fill); err != nil {
		return fmt.Errorf("cannot make snapshot %q: %w", snap.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snaps[snap.ID], s.snapNames[snap.Name] = snap, snap.ID
	return nil
}

// addGroup makes a group with all its snapshots by one rename. fill makes a directory named after
// each member's id, copies the data there, and syncs it.
func (s *store) addGroup(ctx context.Context, g group, fill func(dir string) error) error {
	if err := s.place(ctx, g.ID, dirGroups, groupFile, g, fill); err != nil {
		return fmt.Errorf("cannot make group snapshot %q: %w", g.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learnGroup(g)
	return nil
}

func (s *store) learnGroup(g group) {
	s.groups[g.ID], s.groupNames[g.Name] = g, g.ID
	for _, m := range g.Snapshots {
		s.snaps[m.ID] = m
	}
}

// trashSnapshot removes a snapshot without a group from the list, durably.
func (s *store) trashSnapshot(snap snapshot) error {
	if err := s.move(snap.ID, dirSnapshots, dirTrash); err != nil {
		return err
	}
	s.reach("trashed")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snaps, snap.ID)
	delete(s.snapNames, snap.Name)
	return nil
}

// trashGroup removes a group with all its snapshots from the list, durably.
func (s *store) trashGroup(g group) error {
	if err := s.move(g.ID, dirGroups, dirTrash); err != nil {
		return err
	}

	s.reach("trashed")
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.groups, g.ID)
	delete(s.groupNames, g.Name)
	for _, m := range g.Snapshots {
		delete(s.snaps, m.ID)
	}

	return nil
}

// getSnapshot returns errNoSnapshot for an unknown id, and another error if the metadata cannot be
// read.
func (s *store) getSnapshot(id string) (snapshot, error) { return find(s, s.snaps, id) }

// getGroup is getSnapshot for groups.
func (s *store) getGroup(id string) (group, error) { return find(s, s.groups, id) }

func find[T any](s *store, in map[string]T, id string) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	found, ok := in[id]
	if err := s.brokenSnaps[id]; err != nil {
		return found, err
	}
	if !ok {
		return found, errNoSnapshot
	}

	return found, nil
}

func (s *store) snapshotByName(name string) (snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, ok := s.snaps[s.snapNames[name]]
	return snap, ok
}

func (s *store) groupByName(name string) (group, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.groups[s.groupNames[name]]
	return g, ok
}

// listSnapshots returns all snapshots ordered by id, which is also the order of pages.
func (s *store) listSnapshots() []snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]snapshot, 0, len(s.snaps))
	for _, snap := range s.snaps {
		all = append(all, snap)
	}
	slices.SortFunc(all, func(a, b snapshot) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
