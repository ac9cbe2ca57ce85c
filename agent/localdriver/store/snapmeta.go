package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ErrNoSnapshot is returned if no snapshot or group has the given id.
var ErrNoSnapshot = errors.New("no such snapshot")

// Snapshot is the content of snapshot.json. In group.json, it is the entry of a member. A snapshot
// is a full copy, so it depends neither on its source nor on other snapshots.
type Snapshot struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"` // empty for a snapshot in a group
	// the id of the source volume, which may have been deleted
	Source string `json:"source"`
	Group  string `json:"group,omitempty"`
	Type   string `json:"type"`
	FSType string `json:"fs_type,omitempty"`
	Block  bool   `json:"block"`
	// The capacity of the source at the time of the snapshot; 0 for a directory without a requested
	// size.
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created"`
}

// Group is the content of group.json. One file lists all snapshots of the group.
type Group struct {
	Version   int        `json:"version"`
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Created   time.Time  `json:"created"`
	Snapshots []Snapshot `json:"snapshots"`
}

// NewSnapshot returns the description of a snapshot that is about to be made of a volume.
func NewSnapshot(name, groupID string, v Volume) Snapshot {
	return Snapshot{Version: MetaVersion, ID: NewIDOf(SnapPrefix), Name: name, Source: v.ID, Group: groupID,
		Type: v.Type, FSType: v.FSType, Block: v.Block, Size: v.Capacity, Created: time.Now().UTC()}
}

// CSI returns the snapshot in the form of a CSI answer.
func (s Snapshot) CSI() *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, GroupSnapshotId: s.Group,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: true}
}

// CSI returns the group in the form of a CSI answer.
func (g Group) CSI() *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Created), ReadyToUse: true}
	for _, s := range g.Snapshots {
		out.Snapshots = append(out.Snapshots, s.CSI())
	}
	return out
}

// ContentName returns the file name of a volume's data: a directory or an image.
func ContentName(typ string) string {
	if typ == TypeImage {
		return ImageFile
	}
	return DataDir
}

// SnapshotData returns the path of a snapshot's data, which is a directory or an image file.
func (s *snapshots) SnapshotData(snap Snapshot) string {
	if snap.Group != "" {
		return s.Path(DirGroups, snap.Group, snap.ID, ContentName(snap.Type))
	}
	return s.Path(DirSnapshots, snap.ID, ContentName(snap.Type))
}

func (s *snapshots) loadSnapshots() {
	for _, id := range s.entries(DirSnapshots, func(n string) bool { return ValidIDOf(SnapPrefix, n) }) {
		var snap Snapshot
		err := readMeta(s.Path(DirSnapshots, id, SnapFile), &snap)
		if err == nil {
			err = snap.check(id, "")
		}
		if err != nil {
			s.keepBroken(id, err)
			continue
		}

		s.snaps[id], s.snapNames[snap.Name] = snap, id
	}

	for _, id := range s.entries(DirGroups, func(n string) bool { return ValidIDOf(GroupPrefix, n) }) {
		var g Group
		err := readMeta(s.Path(DirGroups, id, groupFile), &g)
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

// keepBroken records that a snapshot cannot be used. The driver keeps the snapshot's data, which
// may be the only copy.
func (s *snapshots) keepBroken(id string, err error) {
	s.Log.Error("cannot use a snapshot; its data is left alone", "id", id, "error", err)
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

func (s Snapshot) check(id, groupID string) error {
	if s.Version != MetaVersion || s.ID != id || !ValidIDOf(SnapPrefix, id) || s.Group != groupID ||
		(s.Type != TypeDirectory && s.Type != TypeImage) {
		return fmt.Errorf("unexpected version %d, id %q, group %q or type %q", s.Version, s.ID, s.Group, s.Type)
	}
	return nil
}

func (g Group) check(id string) error {
	if g.Version != MetaVersion || g.ID != id {
		return fmt.Errorf("unexpected version %d or id %q", g.Version, g.ID)
	}
	for _, s := range g.Snapshots {
		if err := s.check(s.ID, id); err != nil {
			return err
		}
	}
	return nil
}

// AddSnapshot makes a snapshot. The function fill copies the data into the given directory and
// syncs the copy.
func (s *snapshots) AddSnapshot(ctx context.Context, snap Snapshot, fill func(dir string) error) error {
	if err := s.place(ctx, snap.ID, DirSnapshots, SnapFile, snap, fill); err != nil {
		return fmt.Errorf("cannot make snapshot %q: %w", snap.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snaps[snap.ID], s.snapNames[snap.Name] = snap, snap.ID
	return nil
}

// AddGroup makes a group with all its snapshots by one rename. For each member, the function fill
// makes a directory with the member's id as its name, copies the data there, and syncs the copy.
func (s *snapshots) AddGroup(ctx context.Context, g Group, fill func(dir string) error) error {
	if err := s.place(ctx, g.ID, DirGroups, groupFile, g, fill); err != nil {
		return fmt.Errorf("cannot make group snapshot %q: %w", g.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learnGroup(g)
	return nil
}

func (s *snapshots) learnGroup(g Group) {
	s.groups[g.ID], s.groupNames[g.Name] = g, g.ID
	for _, m := range g.Snapshots {
		s.snaps[m.ID] = m
	}
}

// TrashSnapshot deletes a snapshot that is not in a group, by moving it to trash, and waits until
// the change is on disk.
func (s *snapshots) TrashSnapshot(snap Snapshot) error {
	if err := s.Move(snap.ID, DirSnapshots, DirTrash); err != nil {
		return err
	}
	s.Reach("trashed")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snaps, snap.ID)
	delete(s.snapNames, snap.Name)
	return nil
}

// TrashGroup deletes a group with all its snapshots, by moving it to trash, and waits until the
// change is on disk.
func (s *snapshots) TrashGroup(g Group) error {
	if err := s.Move(g.ID, DirGroups, DirTrash); err != nil {
		return err
	}

	s.Reach("trashed")
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.groups, g.ID)
	delete(s.groupNames, g.Name)
	for _, m := range g.Snapshots {
		delete(s.snaps, m.ID)
	}

	return nil
}

// GetSnapshot returns a snapshot. It returns ErrNoSnapshot for an unknown id, and another error if
// the metadata cannot be used.
func (s *snapshots) GetSnapshot(id string) (Snapshot, error) { return find(s, s.snaps, id) }

// GetGroup returns a group, with the same errors as GetSnapshot.
func (s *snapshots) GetGroup(id string) (Group, error) { return find(s, s.groups, id) }

func find[T any](s *snapshots, in map[string]T, id string) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	found, ok := in[id]
	if err := s.brokenSnaps[id]; err != nil {
		return found, err
	}
	if !ok {
		return found, ErrNoSnapshot
	}

	return found, nil
}

// SnapshotByName finds the snapshot with the given name, unless it is in a group.
func (s *snapshots) SnapshotByName(name string) (Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, ok := s.snaps[s.snapNames[name]]
	return snap, ok
}

// GroupByName finds the group with the given name.
func (s *snapshots) GroupByName(name string) (Group, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.groups[s.groupNames[name]]
	return g, ok
}

// ListSnapshots returns all snapshots, ordered by id. ListSnapshots of CSI returns its pages in the
// same order.
func (s *snapshots) ListSnapshots() []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.snaps), func(a, b Snapshot) int { return cmp.Compare(a.ID, b.ID) })
}

// snapshots contains the snapshots and groups of a state directory. It works like the type volumes.
type snapshots struct {
	*StateDir

	mu          sync.Mutex
	snaps       map[string]Snapshot // all snapshots, including those in groups
	snapNames   map[string]string   // snapshot ids, by name
	brokenSnaps map[string]error    // why the metadata cannot be used, by snapshot id
	groups      map[string]Group
	groupNames  map[string]string // group ids, by name
}
