package san

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// defaultSize is the size of a volume without a requested size, in bytes.
const defaultSize = 64 << 20

// blockFile is the name of the file that a session of a block volume serves.
const blockFile = "disk.img"

// AddDisk makes a volume that exists without CreateVolume. A size of 0 selects the default size.
func (s *fabric) AddDisk(id string, size int64) error {
	s.admin.Lock()
	defer s.admin.Unlock()
	_, err := s.make(&Disk{ID: id, Size: size})
	return err
}

// Disks returns the disks, sorted by id.
func (s *fabric) Disks() []Disk {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []Disk
	for _, d := range s.disks {
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Disk) int { return cmp.Compare(a.ID, b.ID) })

	return all
}

// make makes the files of a disk. The caller holds the lock admin.
func (s *fabric) make(d *Disk) (*Disk, error) {
	if s.disks[d.ID] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q exists", d.ID)
	}
	if d.Size == 0 {
		d.Size = defaultSize
	}

	base := filepath.Join(s.dir, "disks", "d-"+url.PathEscape(d.ID))
	d.Dir, d.Image = filepath.Join(base, "files"), filepath.Join(base, "block", blockFile)
	for _, dir := range []string{d.Dir, filepath.Dir(d.Image)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := resizeFile(d.Image, d.Size); err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks[d.ID] = d

	return d, nil
}

// resizeFile changes the size of a sparse file, which it makes if the file is missing.
func resizeFile(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// remove removes a disk that has no attachment. The caller holds the lock admin.
func (s *fabric) remove(id string) error {
	d := s.disks[id]
	if d == nil {
		return nil
	}
	if used := s.attached(func(a *attachment) bool { return a.volume == id }); len(used) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %q is attached to %q", id, used[0].node)
	}

	s.mu.Lock()
	delete(s.disks, id)
	s.mu.Unlock()

	return removeTree(filepath.Dir(d.Dir))
}

// removeTree removes a directory of the SAN, which contains no mount.
func removeTree(dir string) error {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})

	for _, path := range slices.Backward(paths) {
		err = errors.Join(err, os.Remove(path))
	}

	return err
}

// grow changes the size of a disk to at least size. The caller holds the lock admin.
func (s *fabric) grow(id string, size int64) (int64, error) {
	d := s.disks[id]
	if d == nil {
		return 0, status.Errorf(codes.NotFound, "volume %q does not exist", id)
	}
	if size <= d.Size {
		return d.Size, nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	d.Size = size

	return size, resizeFile(d.Image, size)
}

// copyTree copies the files and the image of a disk.
func copyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy %s: %w: %s", from, err, out)
	}
	return nil
}
