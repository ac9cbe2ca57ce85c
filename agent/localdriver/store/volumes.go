package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// Unusable returns the reason why the metadata of a volume cannot be used, or "".
func (s *volumes) Unusable(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.broken[id]; err != nil {
		return err.Error()
	}
	return ""
}

// finishGrowing completes an expansion after a crash. If the image is longer than recorded,
// finishGrowing records the new size.
func (s *volumes) finishGrowing(v Volume) Volume {
	if v.Type != TypeImage {
		return v
	}

	st, err := mounts.StatPath(s.DataPath(v))
	if err != nil || !st.IsRegular() || int64(st.Size) <= v.Capacity {
		return v // a later call that uses the volume reports the problem
	}

	s.Log.Info("a volume has grown", "volume_id", v.ID, "from_bytes", v.Capacity, "bytes", st.Size)
	v.Capacity = int64(st.Size)
	if err := WriteVolume(s.Path(DirVolumes, v.ID), v); err != nil {
		s.Log.Warn("cannot record that a volume has grown; the next start does so", "volume_id", v.ID, "error", err)
	}

	return v
}

// ErrNoVolume is returned if no volume has the given id.
var ErrNoVolume = errors.New("no such volume")

// volumes contains the volumes of a state directory. The driver reads the directory at its start.
// It then updates the directory and the maps together; no other process can change the directory,
// because the driver holds its lock.
type volumes struct {
	*StateDir

	mu     sync.Mutex
	byID   map[string]Volume
	byName map[string]string // volume ids, by name
	broken map[string]error  // why the metadata cannot be used, by volume id
}

// DataPath returns the path of the data directory of a directory volume, or of the image file.
func (s *volumes) DataPath(v Volume) string {
	if v.Type == TypeImage {
		return s.Path(DirVolumes, v.ID, ImageFile)
	}
	return s.Path(DirVolumes, v.ID, DataDir)
}

func (s *volumes) load() error {
	for _, d := range []string{DirVolumes, DirSnapshots, DirGroups, DirFrozen, DirTmp, DirTrash} {
		if err := os.MkdirAll(s.Path(d), 0o700); err != nil {
			return fmt.Errorf("cannot make the state directory: %w", err)
		}
	}

	for _, id := range s.entries(DirTmp, validAnyID) {
		s.Log.Info("removing an unfinished volume", "id", id)
		if err := s.Move(id, DirTmp, DirTrash); err != nil {
			return err
		}
	}

	for _, id := range s.entries(DirVolumes, ValidID) {
		v, err := ReadVolume(s.Path(DirVolumes, id, MetaFile), id)
		if err != nil {
			// The data may be the only copy, so keep it. Do not list the volume, and log the error.
			s.Log.Error("cannot use a volume; its data is left alone", "volume_id", id, "error", err)
			s.broken[id] = err
			continue
		}
		v = s.finishGrowing(v)
		s.byID[id], s.byName[v.Name] = v, id
	}

	return nil
}

// ReadVolume reads a volume's metadata and checks it.
func ReadVolume(path, id string) (Volume, error) {
	var v Volume
	if err := readMeta(path, &v); err != nil {
		return Volume{}, fmt.Errorf("cannot read volume %q: %w", id, err)
	}
	if v.Version != MetaVersion || v.ID != id || (v.Type != TypeDirectory && v.Type != TypeImage) {
		return Volume{}, fmt.Errorf("cannot read volume %q: %s: unexpected version %d, id %q or type %q",
			id, path, v.Version, v.ID, v.Type)
	}

	return v, nil
}

// Get returns a volume. It returns ErrNoVolume for an unknown id, and another error if the metadata
// cannot be used.
func (s *volumes) Get(id string) (Volume, error) {
	if !ValidID(id) {
		return Volume{}, ErrNoVolume
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.broken[id]; err != nil {
		return Volume{}, err
	}

	v, ok := s.byID[id]
	if !ok {
		return Volume{}, ErrNoVolume
	}

	return v, nil
}

// GetByName finds the volume with the given name.
func (s *volumes) GetByName(name string) (Volume, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.byID[s.byName[name]]
	return v, ok
}

// List returns all volumes, ordered by id. ListVolumes returns its pages in the same order.
func (s *volumes) List() []Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.byID), func(a, b Volume) int { return cmp.Compare(a.ID, b.ID) })
}

// IDs returns the ids of all volumes, sorted. This includes volumes whose metadata cannot be used.
func (s *volumes) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.AppendSeq(slices.Collect(maps.Keys(s.byID)), maps.Keys(s.broken))
	slices.Sort(all)
	return all
}

// Add makes a volume. The function fill makes the volume's data in the given directory and syncs
// it.
func (s *volumes) Add(ctx context.Context, v Volume, fill func(dir string) error) error {
	if err := s.place(ctx, v.ID, DirVolumes, MetaFile, v, fill); err != nil {
		return fmt.Errorf("cannot make volume %q: %w", v.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID], s.byName[v.Name] = v, v.ID
	return nil
}

// Rewrite replaces the metadata of a volume that the caller has locked. After an error, the driver
// still uses the old metadata. The file then contains either the old or the new metadata
// completely.
func (s *volumes) Rewrite(v Volume) error {
	if err := WriteVolume(s.Path(DirVolumes, v.ID), v); err != nil {
		return fmt.Errorf("cannot record the change of volume %q: %w", v.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID] = v
	return nil
}

// Trash deletes a volume by moving it to trash, and waits until the change is on disk. Purge then
// removes the volume's data.
func (s *volumes) Trash(v Volume) error {
	if err := s.Move(v.ID, DirVolumes, DirTrash); err != nil {
		return err
	}
	s.Reach("trashed")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, v.ID)
	delete(s.byName, v.Name)
	return nil
}
