package volmgr

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/volmgr/volume"
)

// Tidy removes the empty names below the root that nobody mounts at. It is for
// the first start in a boot: a power cut may bring directories back that were
// removed, because a commit of the state database syncs no directory. Then no
// volume is mounted, and what a claim needs is made again. What is not empty, or
// is a mount, stays, and is in the error. Notes are not synced either: one that the
// power cut has left empty goes, and is written again if its claim is there.
func (m *Manager) Tidy() error {
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	noteUnlessFull := func(err error) {
		if !notEmpty(err) {
			note(err)
		}
	}
	below := func(parts ...string) (paths []string) {
		dir := filepath.Join(append([]string{m.o.Root}, parts...)...)
		list, err := os.ReadDir(dir)
		note(err)
		for _, e := range list {
			paths = append(paths, filepath.Join(append(parts, e.Name())...))
		}
		return paths
	}
	for _, plugin := range below() {
		for _, path := range below(plugin, stagingDir) {
			note(m.o.Host.RemoveLeftover(filepath.Join(m.o.Root, path)))
		}
		for _, alloc := range below(plugin, targetsDir) {
			for _, path := range below(alloc) {
				private := filepath.Base(path) == volume.PrivateDir
				if !private {
					note(m.o.Host.RemoveLeftover(filepath.Join(m.o.Root, path)))
					continue
				}
				for _, path := range below(path) {
					note(m.o.Host.RemoveLeftover(filepath.Join(m.o.Root, path)))
				}
				noteUnlessFull(os.Remove(filepath.Join(m.o.Root, path)))
			}
			noteUnlessFull(os.Remove(filepath.Join(m.o.Root, alloc)))
		}
		for _, path := range below(plugin, notesDir) {
			note(removeEmpty(filepath.Join(m.o.Root, path)))
		}
	}
	return errors.Join(errs...)
}

// removeEmpty removes a regular file that holds nothing.
func removeEmpty(path string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
		return err
	}
	return os.Remove(path)
}
