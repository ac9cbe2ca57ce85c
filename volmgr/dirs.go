package volmgr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/volagent/volagent/volmgr/volume"
)

// These constants are the modes of the directories below the root. In a passable directory, other
// users can open a known name but cannot list the names. Only root can enter a closed directory.
const (
	passable = 0o711
	closed   = 0o700
)

// MakeDir makes a directory for mounts, and its missing parents below the root. The mode depends on
// the path of the directory. The directory of an alloc is closed until openTo opens it.
func (m *Manager) MakeDir(dir string) error {
	err := os.Mkdir(dir, modeOf(m.o.Root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		if err = m.MakeDir(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, modeOf(m.o.Root, dir))
		}
	}
	if errors.Is(err, fs.ErrExist) {
		err = os.MkdirAll(dir, closed) // MkdirAll returns an error if the path is not a directory
	}
	if err != nil && !errors.As(err, new(*makeError)) {
		return &makeError{err}
	}
	return err
}

// makeError is the error of a directory that MakeDir could not make. With this type, the message of
// a recursive call does not repeat the same words.
type makeError struct{ err error }

func (e *makeError) Error() string { return fmt.Sprintf("cannot make directory: %v", e.err) }

func (e *makeError) Unwrap() error { return e.err }

// modeOf returns the mode for a new directory below the root.
func modeOf(root, dir string) os.FileMode {
	above := filepath.Dir(dir)
	perPlugin := above == root
	targets := filepath.Base(dir) == targetsDir && filepath.Dir(above) == root
	if dir == root || perPlugin || targets {
		return passable
	}
	return closed
}

// openTo permits other users to reach the claim's target, unless the target is private. The caller
// must have called allocDirs.enter for the directory.
func openTo(c volume.Claim) error {
	if c.Private() {
		return nil
	}
	return chmod(filepath.Dir(c.Target), passable)
}

// dropDirs removes the directories of a target that are now empty. If the alloc's directory then
// contains only private targets, dropDirs closes the directory again.
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
			return nil // the directory contains other targets
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}

	return nil
}

// closeIfPrivate closes an alloc's directory if it contains only private targets.
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

// RepairModes sets the modes of the directories below the root to those that this release uses. The
// parameter records must contain every volume that may be mounted. The directory of an alloc
// remains open if it contains a target for other users. RepairModes changes no mount. The error
// names each directory that could not be changed.
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

// notEmpty reports whether rmdir failed because the directory is not empty.
func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}
