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

// The directories of a state directory, see the package comment.
const (
	dirVolumes   = "volumes"
	dirSnapshots = "snapshots"
	dirGroups    = "groups"
	dirFrozen    = "frozen"
	dirTmp       = "tmp"
	dirTrash     = "trash"

	metaFile      = "volume.json"
	freshSuffix   = ".new"      // of a file, until it takes the place of the one without
	exclusiveFile = "exclusive" // the volume was last published for one target alone
	dataDir       = "data"
	imageFile     = "image"

	metaVersion = 1
)

// errNoVolume is returned for an id that no volume has.
var errNoVolume = errors.New("no such volume")

// volume is what volume.json holds: what was asked for, never what is mounted now.
type volume struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Type     string    `json:"type"`              // typeDirectory or typeImage
	FSType   string    `json:"fs_type,omitempty"` // what an image was formatted with; empty when raw
	Block    bool      `json:"block"`             // block access was asked for
	Capacity int64     `json:"capacity_bytes"`    // 0 for a directory when nothing was asked for
	Created  time.Time `json:"created"`
	Source   string    `json:"source,omitempty"` // the snapshot or volume it was copied from

	// Of a directory: the bytes it may take, 0 for any number; the project that it has in the
	// filesystem for that, 0 for none; and whether not all of it may belong to the project yet.
	Quota     int64  `json:"quota_bytes,omitempty"`
	Project   uint32 `json:"project,omitempty"`
	Assigning bool   `json:"assigning,omitempty"`
	// QuotaIsSize tells that the quota follows the capacity, until another quota is set.
	QuotaIsSize bool `json:"quota_is_size,omitempty"`
}

// store keeps the volumes of one state directory. The directory is the truth; the maps are what
// was read from it at the start, kept up by the only process that holds the lock.
type store struct {
	root string // with all symbolic links resolved, as the mount table shows it
	lock *os.File
	log  hclog.Logger
	tap  func(point string) // told where a crash would matter; for tests, else nil

	freezeMost time.Duration // for how long writers are made to wait for a copy

	mu     sync.Mutex
	byID   map[string]volume
	byName map[string]string // name → id
	broken map[string]error  // id → why its metadata cannot be used

	snaps       map[string]snapshot // also those of groups
	snapNames   map[string]string   // name → id
	brokenSnaps map[string]error    // as broken, of snapshots and groups
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

// validID tells the driver's own volume ids from everything else. Nothing else may become a path.
func validID(id string) bool { return validIDOf(idPrefix, id) }

func validIDOf(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == idRandom && strings.Trim(rest, idAlphabet) == ""
}

// validAnyID accepts the ids of volumes, snapshots and groups.
func validAnyID(id string) bool {
	return validID(id) || validIDOf(snapPrefix, id) || validIDOf(groupPrefix, id)
}

// openStore locks a state directory, reads its volumes, and moves half-made ones to trash.
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

// A driver that was killed may leave the lock to a child that it had forked and
// that has not come to its own program yet. It is waited for that long, with
// tries so far apart.
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

// dataIn is the root of a directory volume that is being made in dir.
func dataIn(dir string) string { return filepath.Join(dir, dataDir) }

// dataPath is the root of a directory volume, or the image file.
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
			// Its data may be all somebody has: keep it, list it nowhere, and say so.
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

// entries lists what the driver itself made in one of its directories, by its name.
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

// leftovers lists what was deleted and whose data is not removed yet.
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

// get returns errNoVolume for an id no volume has, and another error for one whose metadata
// cannot be read.
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

// list returns all volumes ordered by id, which is the order of pages.
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

// ids returns the ids of all volumes in order, also of those whose metadata cannot be used.
func (s *store) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.AppendSeq(slices.Collect(maps.Keys(s.byID)), maps.Keys(s.broken))
	slices.Sort(all)
	return all
}

// add creates a volume. fill makes its data inside the directory it is given and syncs it.
func (s *store) add(ctx context.Context, v volume, fill func(dir string) error) error {
	if err := s.place(ctx, v.ID, dirVolumes, metaFile, v, fill); err != nil {
		return fmt.Errorf("cannot make volume %q: %w", v.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID], s.byName[v.Name] = v, v.ID
	return nil
}

// rewrite replaces the metadata of a volume that the caller has locked. After an error memory
// keeps what was, and the file holds what was or what was to be, whole.
func (s *store) rewrite(v volume) error {
	if err := writeVolume(s.path(dirVolumes, v.ID), v); err != nil {
		return fmt.Errorf("cannot record the change of volume %q: %w", v.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[v.ID] = v
	return nil
}

// trash takes a volume out of the list, durably; purge frees its space.
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
// replaces anything.
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
