package volmgr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/volagent/volagent/volmgr/volume"
)

// Modes of the directories below the root. Other users may pass through a passable directory but
// not list it. Only root may enter a closed directory.
const (
	passable = 0o711
	closed   = 0o700
)

// MakeDir makes a directory for mounts and its missing parents below the root. Each gets the mode
// of its place. Directories that other users may pass through are opened later, by openTo.
func (m *Manager) MakeDir(dir string) error {
	err := os.Mkdir(dir, m.modeOf(dir))
	if errors.Is(err, fs.ErrNotExist) {
		if err = m.MakeDir(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, m.modeOf(dir))
		}
	}
	if errors.Is(err, fs.ErrExist) {
		err = os.MkdirAll(dir, closed) // refuses a path that is not a directory
	}
	if err != nil && !errors.As(err, new(*makeError)) {
		return &makeError{err}
	}
	return err
}

// makeError says once that a directory could not be made, even if a recursive call failed.
type makeError struct{ err error }

func (e *makeError) Error() string { return fmt.Sprintf("cannot make directory: %v", e.err) }

func (e *makeError) Unwrap() error { return e.err }

// modeOf returns the mode of a new directory.
func (m *Manager) modeOf(dir string) os.FileMode {
	above := filepath.Dir(dir)
	perPlugin := above == m.o.Root
	targets := filepath.Base(dir) == targetsDir && filepath.Dir(above) == m.o.Root
	if dir == m.o.Root || perPlugin || targets {
		return passable
	}
	return closed
}

// openTo lets other users pass to a claim's target, if they find the volume at that path. The
// caller must have entered the directory (see allocDirs).
func (m *Manager) openTo(c volume.Claim) error {
	if c.Private() {
		return nil
	}
	return chmod(filepath.Dir(c.Target), passable)
}

// dropDirs removes the directories of a target that have become empty. If only private targets
// remain in the alloc's directory, dropDirs closes it again.
func (m *Manager) dropDirs(target string, rmdir func(string) error) error {
	for _, dir := range volume.TargetDirs(target) {
		err := m.dirs.drop(dir, func(dir string) error {
			err := rmdir(dir)
			if notEmpty(err) && filepath.Base(dir) != volume.PrivateDir {
				return closeIfPrivate(dir)
			}
			return err
		})
		switch {
		case notEmpty(err):
			return nil // it holds other targets
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}

	return nil
}

// closeIfPrivate closes the directory of an alloc that has only private targets.
func closeIfPrivate(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != volume.PrivateDir }) {
		return nil
	}
	return chmod(dir, closed)
}

func chmod(dir string, mode os.FileMode) error {
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("cannot set the mode of a directory: %w", err)
	}
	return nil
}

// RepairModes sets the directories below the root to the modes that this release gives to new ones.
// Records must contain every volume that may be mounted. The directory of an alloc stays open if it
// contains a target that other users may use. RepairModes changes no mount. The error names the
// directories that could not be changed.
func (m *Manager) RepairModes(ctx context.Context, records []volume.Record) error {
	open := map[string]bool{}
	for _, r := range records {
		for _, c := range r.Claims {
			open[filepath.Dir(c.Target)] = open[filepath.Dir(c.Target)] || !c.Private()
		}
	}

	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}

	list := func(dir string) []string {
		c, err := m.o.Host.Contents(ctx, dir, all, true)
		note(err)
		return c.Names
	}

	set := func(dir string, mode os.FileMode) { note(m.o.Host.SetMode(ctx, dir, mode)) }
	for _, plugin := range list(m.o.Root) {
		dir := filepath.Join(m.o.Root, plugin)
		set(dir, passable)
		set(filepath.Join(dir, stagingDir), closed)
		targets := filepath.Join(dir, targetsDir)
		set(targets, passable)

		for _, alloc := range list(targets) {
			at, mode := filepath.Join(targets, alloc), os.FileMode(closed)
			if open[at] {
				mode = passable
			}
			set(at, mode)
			set(filepath.Join(at, volume.PrivateDir), closed)
		}
	}

	return errors.Join(errs...)
}
