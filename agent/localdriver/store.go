package localdriver

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
	dirVolumes   = "volumes"
	dirSnapshots = "snapshots"
	dirGroups    = "groups"
	dirFrozen    = "frozen"
	dirTmp       = "tmp"
	dirTrash     = "trash"

	metaFile      = "volume.json"
	freshSuffix   = ".new"      // of a new file, until a rename replaces the old one
	exclusiveFile = "exclusive" // the volume was last published for one target alone
	dataDir       = "data"
	imageFile     = "image"

	metaVersion = 1
)

// errNoVolume is returned for an id that no volume has.
var errNoVolume = errors.New("no such volume")

// volume is the content of volume.json: the request's parameters, never the current mounts.
type volume struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Type     string    `json:"type"`              // typeDirectory or typeImage
	FSType   string    `json:"fs_type,omitempty"` // the filesystem of an image; empty when raw
	Block    bool      `json:"block"`             // block access was requested
	Capacity int64     `json:"capacity_bytes"`    // 0 for a directory if no size was requested
	Created  time.Time `json:"created"`
	Source   string    `json:"source,omitempty"` // the snapshot or volume it was copied from

	// These three are for directories. Quota is the limit in bytes, 0 for none. Project is the
	// filesystem project that implements the limit, 0 for none. Assigning is true while some files
	// may not belong to the project yet.
	Quota     int64  `json:"quota_bytes,omitempty"`
	Project   uint32 `json:"project,omitempty"`
	Assigning bool   `json:"assigning,omitempty"`
	// QuotaIsSize means that the quota follows the capacity, until another quota is set.
	QuotaIsSize bool `json:"quota_is_size,omitempty"`
}

// store keeps the volumes of one state directory. The directory is authoritative. The maps are read
// from it at the start, and the only process that holds the lock keeps them up to date.
type store struct {
	root string // with all symbolic links resolved, as the mount table shows it
	lock *os.File
	log  hclog.Logger
	tap  func(point string) // called at points where a crash would matter; only in tests, else nil

	freezeMost time.Duration // the longest time that writers wait for a copy

	mu     sync.Mutex
	byID   map[string]volume
	byName map[string]string // name → id
	broken map[string]error  // id → why its metadata cannot be used

	snaps       map[string]snapshot // including the members of groups
	snapNames   map[string]string   // name → id
	brokenSnaps map[string]error    // as broken, for snapshots and groups
	groups      map[string]group
	groupNames  map[string]string // name → id
}

const (
	idPrefix   = "vol-"
	idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"
	idRandom   = 16 // characters, 5 bits each
)

func newID() string { return newIDOf(idPrefix) }

func newIDOf(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:idRandom])
}

// validID reports whether id has the form of the driver's own volume ids. No other id may become
// part of a path.
func validID(id string) bool { return validIDOf(idPrefix, id) }

func validIDOf(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == idRandom && strings.Trim(rest, idAlphabet) == ""
}

// validAnyID reports whether id has the form of a volume, snapshot or group id.
func validAnyID(id string) bool {
	return validID(id) || validIDOf(snapPrefix, id) || validIDOf(groupPrefix, id)
}

// openStore locks a state directory, reads its volumes, and moves unfinished ones to trash.
func openStore(ctx context.Context, dir string, log hclog.Logger) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the state directory: %w", err)
	}

	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve the state directory: %w", err)
	}

	s := &store{root: root, log: log,
		byID: map[string]volume{}, byName: map[string]string{}, broken: map[string]error{},
		snaps: map[string]snapshot{}, snapNames: map[string]string{}, brokenSnaps: map[string]error{}, groups: map[string]group{}, groupNames: map[string]string{}}
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.close())
	}

	return s, nil
}

// A killed driver may have forked a child that has not yet executed its own program and still holds
// the lock. Therefore acquire retries every lockEvery, for at most lockWithin.
const (
	lockWithin = 2 * time.Second
	lockEvery  = 20 * time.Millisecond
)

func (s *store) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()

	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
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
			return errors.Join(fmt.Errorf("another driver uses the state directory %q: %w", s.root, err), f.Close())
		}
	}
}

func (s *store) close() error { return s.lock.Close() }

func (s *store) path(elem ...string) string {
	return filepath.Join(append([]string{s.root}, elem...)...)
}

// dataIn returns the root of a directory volume that is being made in dir.
func dataIn(dir string) string { return filepath.Join(dir, dataDir) }

// dataPath returns the root of a directory volume, or the path of the image file.
func (s *store) dataPath(v volume) string {
	if v.Type == typeImage {
		return s.path(dirVolumes, v.ID, imageFile)
	}
	return s.path(dirVolumes, v.ID, dataDir)
}

func (s *store) load() error {
	for _, d := range []string{dirVolumes, dirSnapshots, dirGroups, dirFrozen, dirTmp, dirTrash} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return fmt.Errorf("cannot make the state directory: %w", err)
		}
	}

	for _, id := range s.entries(dirTmp, validAnyID) {
		s.log.Info("discarding what was never finished", "id", id)
		if err := s.move(id, dirTmp, dirTrash); err != nil {
			return err
		}
	}

	for _, id := range s.entries(dirVolumes, validID) {
		v, err := readVolume(s.path(dirVolumes, id, metaFile), id)
		if err != nil {
			// Its data may be the only copy. Keep it, but do not list it, and log the error.
			s.log.Error("cannot use a volume; its data is left alone", "volume_id", id, "error", err)
			s.broken[id] = err
			continue
		}
		v = s.finishGrowing(v)
		s.byID[id], s.byName[v.Name] = v, id
	}

	s.loadSnapshots()
	return nil
}

// entries lists the objects in one of the driver's directories whose names the driver itself makes.
func (s *store) entries(dir string, valid func(string) bool) []string {
	list, err := os.ReadDir(s.path(dir))
	if err != nil {
		s.log.Error("cannot list a state directory", "error", err)
		return nil
	}

	var ids []string
	for _, e := range list {
		if !e.IsDir() || !valid(e.Name()) {
			s.log.Warn("leaving alone what the driver did not make", "path", s.path(dir, e.Name()))
			continue
		}
		ids = append(ids, e.Name())
	}

	return ids
}

// leftovers lists the deleted objects whose data is not removed yet.
func (s *store) leftovers() []string { return s.entries(dirTrash, validAnyID) }

func readVolume(path, id string) (volume, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return volume{}, fmt.Errorf("cannot read volume %q: %w", id, err)
	}

	var v volume
	if err := json.Unmarshal(raw, &v); err != nil {
		return volume{}, fmt.Errorf("cannot read volume %q: %s: %w", id, path, err)
	}
	if v.Version != metaVersion || v.ID != id || (v.Type != typeDirectory && v.Type != typeImage) {
		return volume{}, fmt.Errorf("cannot read volume %q: %s: unexpected version %d, id %q or type %q",
			id, path, v.Version, v.ID, v.Type)
	}

	return v, nil
}

// get returns errNoVolume for an unknown id, and another error if the metadata cannot be read.
func (s *store) get(id string) (volume, error) {
	if !validID(id) {
		return volume{}, errNoVolume
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.broken[id]; err != nil {
		return volume{}, err
	}

	v, ok := s.byID[id]
	if !ok {
		return volume{}, errNoVolume
	}

	return v, nil
}

func (s *store) getByName(name string) (volume, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.byID[s.byName[name]]
	return v, ok
}

// list returns all volumes ordered by id, which is also the order of pages.
func (s *store) list() []volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]volume, 0, len(s.byID))
	for _, v := range s.byID {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b volume) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// ids returns the ids of all volumes in order, including those whose metadata cannot be used.
func (s *store) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.AppendSeq(slices.Collect(maps.Keys(s.byID)), maps.Keys(s.broken))
	slices.Sort(all)
	return all
}

// add creates a volume. fill makes its data in the directory that it receives, and syncs it.
func (s *store) add(ctx context.Context, v volume, fill func(dir string) error) error {
	if err := s.place(ctx, v.ID, dirVolumes, metaFile, v, fill); err != nil {
		return fmt.Errorf("cannot make volume %q: %w", v.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID], s.byName[v.Name] = v, v.ID
	return nil
}

// rewrite replaces the metadata of a volume that the caller has locked. After an error, the memory
// keeps the old metadata, and the file holds either the old or the new metadata, complete.
func (s *store) rewrite(v volume) error {
	if err := writeVolume(s.path(dirVolumes, v.ID), v); err != nil {
		return fmt.Errorf("cannot record the change of volume %q: %w", v.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID] = v
	return nil
}

// trash removes a volume from the list, durably. purge frees its space.
func (s *store) trash(v volume) error {
	if err := s.move(v.ID, dirVolumes, dirTrash); err != nil {
		return err
	}
	s.reach("trashed")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, v.ID)
	delete(s.byName, v.Name)
	return nil
}

// move renames an entry between two of the driver's directories and waits for the disk. It never
// replaces an existing entry.
func (s *store) move(id, from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, s.path(from, id), unix.AT_FDCWD, s.path(to, id), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("cannot move %q from %s to %s: %w", id, from, to, err)
	}
	return errors.Join(syncDir(s.path(to)), syncDir(s.path(from)))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
