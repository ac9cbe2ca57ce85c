// Package store keeps the descriptions and the data of volumes, snapshots and groups in the driver's
// state directory. The package comment of localdriver draws the directory.
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// The directories and files of a state directory. See the package comment.
const (
	DirVolumes   = "volumes"
	DirSnapshots = "snapshots"
	DirGroups    = "groups"
	DirFrozen    = "frozen"
	DirTmp       = "tmp"
	DirTrash     = "trash"

	MetaFile      = "volume.json"
	FreshSuffix   = ".new"      // of a new file, until a rename replaces the old one
	ExclusiveFile = "exclusive" // the volume was last published for one target alone
	DataDir       = "data"
	ImageFile     = "image"

	MetaVersion = 1
)

// ErrNoVolume is returned for an id that no volume has.
var ErrNoVolume = errors.New("no such volume")

// Store keeps the objects of one state directory.
type Store struct {
	*StateDir
	*volumes
	*snapshots
}

// StateDir is a locked state directory.
type StateDir struct {
	Root string // with all symbolic links resolved, as the mount table shows it
	lock *os.File
	Log  hclog.Logger
	Tap  func(point string) // called at points where a crash would matter; only in tests, else nil
}

// volumes keeps the volumes of a state directory. The directory is authoritative. The maps are read
// from it at the start, and the only process that holds the lock keeps them up to date.
type volumes struct {
	*StateDir

	mu     sync.Mutex
	byID   map[string]Volume
	byName map[string]string // name → id
	broken map[string]error  // id → why its metadata cannot be used
}

// snapshots keeps the snapshots and groups of a state directory, in the same way as volumes.
type snapshots struct {
	*StateDir

	mu          sync.Mutex
	snaps       map[string]Snapshot // including the members of groups
	snapNames   map[string]string   // name → id
	brokenSnaps map[string]error    // id → why its metadata cannot be used
	groups      map[string]Group
	groupNames  map[string]string // name → id
}

const (
	VolumePrefix = "vol-"
	idAlphabet   = "abcdefghijklmnopqrstuvwxyz234567"
	idRandom     = 16 // characters, 5 bits each
)

func NewID() string { return NewIDOf(VolumePrefix) }

func NewIDOf(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:idRandom])
}

// ValidID reports whether id has the form of the driver's own volume ids. No other id may become
// part of a path.
func ValidID(id string) bool { return ValidIDOf(VolumePrefix, id) }

func ValidIDOf(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == idRandom && strings.Trim(rest, idAlphabet) == ""
}

// validAnyID reports whether id has the form of a volume, snapshot or group id.
func validAnyID(id string) bool {
	return ValidID(id) || ValidIDOf(SnapPrefix, id) || ValidIDOf(GroupPrefix, id)
}

// Open locks a state directory, reads its volumes, and moves unfinished ones to trash.
func Open(ctx context.Context, dir string, log hclog.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the state directory: %w", err)
	}

	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve the state directory: %w", err)
	}

	base := &StateDir{Root: root, Log: log}
	s := &Store{base,
		&volumes{StateDir: base, byID: map[string]Volume{}, byName: map[string]string{}, broken: map[string]error{}},
		&snapshots{StateDir: base, snaps: map[string]Snapshot{}, snapNames: map[string]string{}, brokenSnaps: map[string]error{},
			groups: map[string]Group{}, groupNames: map[string]string{}}}
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	s.loadSnapshots()
	return s, nil
}

// A killed driver may have forked a child that has not yet executed its own program and still holds
// the lock. Therefore acquire retries every lockEvery, for at most lockWithin.
const (
	lockWithin = 2 * time.Second
	lockEvery  = 20 * time.Millisecond
)

func (s *StateDir) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()

	f, err := os.OpenFile(s.Path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the lock file: %w", err)
	}

	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}

		select {
		case <-time.After(lockEvery):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("another driver uses the state directory %q: %w", s.Root, err), f.Close())
		}
	}
}

func (s *StateDir) Close() error { return s.lock.Close() }

func (s *StateDir) Path(elem ...string) string {
	return filepath.Join(append([]string{s.Root}, elem...)...)
}

// DataIn returns the root of a directory volume that is being made in dir.
func DataIn(dir string) string { return filepath.Join(dir, DataDir) }

// DataPath returns the root of a directory volume, or the path of the image file.
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
		s.Log.Info("discarding what was never finished", "id", id)
		if err := s.Move(id, DirTmp, DirTrash); err != nil {
			return err
		}
	}

	for _, id := range s.entries(DirVolumes, ValidID) {
		v, err := ReadVolume(s.Path(DirVolumes, id, MetaFile), id)
		if err != nil {
			// Its data may be the only copy. Keep it, but do not list it, and log the error.
			s.Log.Error("cannot use a volume; its data is left alone", "volume_id", id, "error", err)
			s.broken[id] = err
			continue
		}
		v = s.finishGrowing(v)
		s.byID[id], s.byName[v.Name] = v, id
	}

	return nil
}

// entries lists the objects in one of the driver's directories whose names the driver itself makes.
func (s *StateDir) entries(dir string, valid func(string) bool) []string {
	list, err := os.ReadDir(s.Path(dir))
	if err != nil {
		s.Log.Error("cannot list a state directory", "error", err)
		return nil
	}

	var ids []string
	for _, e := range list {
		if !e.IsDir() || !valid(e.Name()) {
			s.Log.Warn("leaving alone what the driver did not make", "path", s.Path(dir, e.Name()))
			continue
		}
		ids = append(ids, e.Name())
	}

	return ids
}

// Leftovers lists the deleted objects whose data is not removed yet.
func (s *StateDir) Leftovers() []string { return s.entries(DirTrash, validAnyID) }

func ReadVolume(path, id string) (Volume, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Volume{}, fmt.Errorf("cannot read volume %q: %w", id, err)
	}

	var v Volume
	if err := json.Unmarshal(raw, &v); err != nil {
		return Volume{}, fmt.Errorf("cannot read volume %q: %s: %w", id, path, err)
	}
	if v.Version != MetaVersion || v.ID != id || (v.Type != TypeDirectory && v.Type != TypeImage) {
		return Volume{}, fmt.Errorf("cannot read volume %q: %s: unexpected version %d, id %q or type %q",
			id, path, v.Version, v.ID, v.Type)
	}

	return v, nil
}

// Get returns ErrNoVolume for an unknown id, and another error if the metadata cannot be read.
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

func (s *volumes) GetByName(name string) (Volume, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.byID[s.byName[name]]
	return v, ok
}

// List returns all volumes ordered by id, which is also the order of pages.
func (s *volumes) List() []Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Volume, 0, len(s.byID))
	for _, v := range s.byID {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b Volume) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// ids returns the ids of all volumes in order, including those whose metadata cannot be used.
func (s *volumes) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.AppendSeq(slices.Collect(maps.Keys(s.byID)), maps.Keys(s.broken))
	slices.Sort(all)
	return all
}

// Add creates a volume. fill makes its data in the directory that it receives, and syncs it.
func (s *volumes) Add(ctx context.Context, v Volume, fill func(dir string) error) error {
	if err := s.place(ctx, v.ID, DirVolumes, MetaFile, v, fill); err != nil {
		return fmt.Errorf("cannot make volume %q: %w", v.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID], s.byName[v.Name] = v, v.ID
	return nil
}

// Rewrite replaces the metadata of a volume that the caller has locked. After an error, the memory
// keeps the old metadata, and the file holds either the old or the new metadata, complete.
func (s *volumes) Rewrite(v Volume) error {
	if err := WriteVolume(s.Path(DirVolumes, v.ID), v); err != nil {
		return fmt.Errorf("cannot record the change of volume %q: %w", v.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID] = v
	return nil
}

// Trash removes a volume from the list, durably. purge frees its space.
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

// Move renames an entry between two of the driver's directories and waits for the disk. It never
// replaces an existing entry.
func (s *StateDir) Move(id, from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, s.Path(from, id), unix.AT_FDCWD, s.Path(to, id), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("cannot move %q from %s to %s: %w", id, from, to, err)
	}
	return errors.Join(SyncDir(s.Path(to)), SyncDir(s.Path(from)))
}

func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
