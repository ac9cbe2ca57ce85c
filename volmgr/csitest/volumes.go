package csitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// store stores volumes as directories:
//
//	<base>/volumes/<hash of the id>/volume.json    the volume
//	                               /attached.json  the nodes to which it is attached; missing if there was none yet
//	                               /data/          its files
//	                               /block.img      its content as a block volume, made on first use
//	<base>/snapshots/<hash of the id>/               snapshot.json, data/, block.img
//	<base>/groups/<hash of the id>/                  group.json
//
// A block volume is the plain file block.img, bind-mounted at its target, or a loop device on the file.
type store struct {
	dir   string // directory that contains the volumes
	base  string
	any   bool // set if every id is the id of an existing volume
	locks sync.Map
}

type stored struct {
	ID       string            `json:"id"`
	Name     string            `json:"name,omitempty"` // set only for a volume that the plugin created
	Capacity int64             `json:"capacity,omitempty"`
	Context  map[string]string `json:"context,omitempty"`

	// Usable is the size that the node sees. It is smaller than Capacity after
	// ControllerExpandVolume and before NodeExpandVolume. Zero means blockSize for a block volume,
	// and the size of the file system for other volumes.
	Usable   int64             `json:"usable,omitempty"`
	Mutable  map[string]string `json:"mutable,omitempty"`
	Topology map[string]string `json:"topology,omitempty"`

	// Snapshot or Clone is the id of the source of the volume's content.
	Snapshot string `json:"snapshot,omitempty"`
	Clone    string `json:"clone,omitempty"`
}

type attachments struct {
	Count int                          `json:"count"` // number of attachments until now, including those that have ended
	Nodes map[string]map[string]string `json:"nodes"` // maps the id of each connected node to its publish context
}

const blockSize = 1 << 20 // size in bytes of a block, and of a volume without a requested size

func (s *store) path(id string, names ...string) string {
	return filepath.Join(append([]string{s.dir, hash(id)}, names...)...)
}

// lock prevents other effects on the same volumes until the caller calls unlock. The lock is held
// only for a short time, because no delay happens under the lock. lock ignores empty ids.
func (s *store) lock(ids ...string) (unlock func()) {
	slices.Sort(ids)
	var held []*sync.Mutex

	for _, id := range slices.Compact(ids) {
		if id == "" {
			continue
		}

		l, _ := s.locks.LoadOrStore(id, &sync.Mutex{})
		mu := l.(*sync.Mutex)
		mu.Lock()
		held = append(held, mu)
	}

	return func() {
		for _, mu := range held {
			mu.Unlock()
		}
	}
}

// snapshotLock returns the id with which lock locks a snapshot. It differs from that of a volume
// with the same id.
func snapshotLock(id string) string {
	if id == "" {
		return ""
	}
	return "snapshot " + id
}

// all returns all volumes.
func (s *store) all() ([]stored, error) {
	return readAll[stored](s.dir, "volume.json")
}

// readAll reads the file with the given name in each directory below dir. It ignores a directory
// without this file, because such a directory is being created or deleted.
func readAll[T any](dir, name string) ([]T, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", name))
	if err != nil {
		return nil, err
	}

	var all []T
	for _, file := range files {
		var one T
		found, err := readJSON(file, &one)
		if err != nil {
			return nil, err
		}
		if found {
			all = append(all, one)
		}
	}

	return all, nil
}

// size returns the size of a block volume that the node sees, in bytes, rounded up to whole pages.
func (v stored) size() int64 { return (max(v.Usable, blockSize) + 4095) / 4096 * 4096 }

// grow stores a volume and changes its block device to the size that the node sees.
func (s *store) grow(v stored) error {
	if err := s.make(v); err != nil {
		return err
	}

	image := s.path(v.ID, "block.img")
	info, err := os.Stat(image)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() >= v.size() {
		return nil
	}
	if err == nil {
		err = os.Truncate(image, v.size())
	}
	if err == nil {
		err = resizeLoop(image)
	}
	if err != nil {
		return fmt.Errorf("cannot grow the block volume: %w", err)
	}

	return nil
}

// get returns a volume, or a NotFound error.
func (s *store) get(id string) (stored, error) {
	if id == "" {
		return stored{}, status.Error(codes.InvalidArgument, "no volume id is given")
	}

	v := stored{ID: id}
	found, err := readJSON(s.path(id, "volume.json"), &v)

	switch {
	case err != nil || found:
		return v, err
	case s.any:
		return v, s.make(v)
	default:
		return v, status.Errorf(codes.NotFound, "no volume %q", id)
	}
}

func (s *store) make(v stored) error {
	if err := os.MkdirAll(s.path(v.ID, "data"), 0o755); err != nil {
		return fmt.Errorf("cannot make the volume: %w", err)
	}
	return writeJSON(s.path(v.ID, "volume.json"), v)
}

// remove deletes a volume and its data. It succeeds if the volume does not exist.
func (s *store) remove(id string) error {
	if err := s.release(id); err != nil {
		return fmt.Errorf("cannot delete the volume: %w", err)
	}

	for _, name := range []string{"volume.json", "attached.json", "block.img"} {
		if err := os.Remove(s.path(id, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot delete the volume: %w", err)
		}
	}

	if err := removeTree(s.path(id)); err != nil {
		return fmt.Errorf("cannot delete the volume: %w", err)
	}

	return nil
}

// removeTree removes dir and everything below it. If another file system is mounted below dir,
// removeTree fails with EBUSY and keeps the content of the mount.
func removeTree(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() && !isMount(path) {
			err = removeTree(path)
		} else {
			err = os.Remove(path)
		}

		if err != nil {
			return err
		}
	}

	return os.Remove(dir)
}

// attach connects a volume to a node and returns the publish context. The context does not change
// until the volume is detached.
func (s *store) attach(id, node string) (map[string]string, error) {
	a, err := s.attachments(id)
	if err != nil {
		return nil, err
	}
	if given, ok := a.Nodes[node]; ok {
		return given, nil
	}

	a.Count++
	given := map[string]string{"csitest/device": fmt.Sprintf("/dev/csitest/%s-%d", hash(id), a.Count), "csitest/node": node}
	a.Nodes[node] = given

	return given, writeJSON(s.path(id, "attached.json"), a)
}

// detach disconnects a volume from a node. If node is empty, detach disconnects the volume from all
// nodes.
func (s *store) detach(id, node string) error {
	a, err := s.attachments(id)
	if err != nil || len(a.Nodes) == 0 {
		return err
	}
	if node == "" {
		clear(a.Nodes)
	}

	delete(a.Nodes, node)
	return writeJSON(s.path(id, "attached.json"), a)
}

func (s *store) attachments(id string) (attachments, error) {
	a := attachments{Nodes: map[string]map[string]string{}}
	_, err := readJSON(s.path(id, "attached.json"), &a)
	return a, err
}

// block returns the path of the file of a block volume.
func (s *store) block(id string) (string, error) {
	v, err := s.get(id)
	if err != nil {
		return "", err
	}

	path := s.path(id, "block.img")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("cannot make the block volume: %w", err)
	}

	return path, errors.Join(f.Truncate(v.size()), f.Close())
}

func readJSON(path string, v any) (found bool, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return false, fmt.Errorf("cannot read %s: %w", path, err)
	}

	return true, nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = replaceFile(path, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}

	return nil
}

// DataDir returns the directory with the files of a volume, for a plugin with the given Config.
func DataDir(cfg Config, id string) string {
	s := store{dir: filepath.Join(cfg.Base, "volumes")}
	return s.path(id, "data")
}

// Attached reports whether the storage is connected to any node. It reads the attachments that the
// plugin stored, because the plugin's answers may be wrong.
func Attached(cfg Config, id string) (bool, error) {
	s := store{dir: filepath.Join(cfg.Base, "volumes")}
	a, err := s.attachments(id)
	return len(a.Nodes) > 0, err
}
