package volmgr

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/volmgr/volume"
)

// Tidy removes the empty files and directories below the root. The agent calls it at its first
// start after a boot, when no volume is mounted. A power cut may restore directories that the agent
// had removed, because a commit of the state database does not sync them. If a claim needs one of
// the removed directories, the agent makes it again.
//
// Mounts and directories with entries remain, and the error of Tidy names each of them. A power cut
// may also leave an empty note, because notes are not synced. Tidy removes such a note, and the
// agent writes it again if the claim still exists.
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

// removeEmpty removes a regular file if the file is empty.
func removeEmpty(path string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
		return err
	}
	return os.Remove(path)
}
