package volmgr

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Leftover is an unknown file or directory below the root, at a path that is reserved for mounts.
type Leftover struct {
	Path     string
	Contents mount.Contents
	Err      error // reason why the agent could not examine the path, or nil
}

// all makes a list contain every entry of a directory. some is the maximum number of entries for a
// message.
const (
	all  = -1
	some = 4
)

// Leftovers returns the unknown files and directories below the root, at all paths that are
// reserved for mounts. It also returns the empty directories of allocs. It omits the known paths
// and their parents, and does not read mounted directories. The error names each directory that
// could not be listed.
func (m *Manager) Leftovers(ctx context.Context, known map[string]bool) (found []Leftover, err error) {
	l := lister{m: m, ctx: ctx, known: known}
	for _, plugin := range l.names(m.o.Root, true) {
		dir := filepath.Join(m.o.Root, plugin)
		staging := filepath.Join(dir, stagingDir)
		for _, name := range l.names(staging, false) {
			if name != mount.CanaryName {
				l.look(filepath.Join(staging, name))
			}
		}
		targets := filepath.Join(dir, targetsDir)
		for _, alloc := range l.names(targets, false) {
			l.alloc(filepath.Join(targets, alloc))
		}
	}

	return l.found, errors.Join(l.errs...)
}

// lister collects the leftovers.
type lister struct {
	m     *Manager
	ctx   context.Context
	known map[string]bool
	found []Leftover
	errs  []error
}

func (l *lister) names(dir string, through bool) []string {
	c, err := l.m.o.Host.Contents(l.ctx, dir, all, through)
	if err != nil {
		l.errs = append(l.errs, err)
	}
	return c.Names
}

func (l *lister) look(path string) {
	if l.known[path] {
		return
	}

	c, err := l.m.o.Host.Contents(l.ctx, path, some, false)
	if err == nil && (c.Mounted || c.Kind == mount.KindNone) {
		return // the path is mounted or no longer exists, so it is not a leftover
	}

	l.found = append(l.found, Leftover{Path: path, Contents: c, Err: err})
}

// alloc examines the directory of one alloc, including its private targets. An empty directory also
// counts as a leftover.
func (l *lister) alloc(dir string) {
	c, err := l.m.o.Host.Contents(l.ctx, dir, all, false)
	switch {
	case err != nil:
		l.errs = append(l.errs, err)
	case c.Mounted, c.Kind != mount.KindDir: // the agent makes only directories here, so other files do not count
	case len(c.Names) == 0 && !l.known[dir]:
		l.found = append(l.found, Leftover{Path: dir, Contents: c})
	}
	for _, name := range c.Names {
		if name == volume.PrivateDir {
			l.alloc(filepath.Join(dir, name))
			continue
		}
		l.look(filepath.Join(dir, name))
	}
}

// RemoveLeftover removes a leftover if it is still empty. After the last target of an alloc, it
// also removes the alloc's directory. The caller must ensure that nothing is mounted at the path
// during the call. RemoveLeftover refuses a path that Leftovers cannot return.
func (m *Manager) RemoveLeftover(path string) error {
	rel, err := filepath.Rel(m.o.Root, path)
	parts := strings.Split(rel, "/")
	targets := len(parts) > 2 && parts[1] == targetsDir
	private := len(parts) > 3 && parts[3] == volume.PrivateDir
	if private {
		parts = slices.Delete(parts, 3, 4)
	}
	switch {
	case err != nil || !filepath.IsLocal(rel) || filepath.Join(m.o.Root, rel) != path:
	case len(parts) == 3 && parts[1] == stagingDir:
		return m.o.Host.RemoveLeftover(path)
	case len(parts) == 3 && targets:
		if err := m.dirs.drop(path, m.o.Host.RemoveLeftover); err != nil || !private {
			return err
		}
		return m.dropDirs(path, m.o.Host.RemoveLeftover)
	case len(parts) == 4 && targets:
		if err := m.o.Host.RemoveLeftover(path); err != nil {
			return err
		}
		return m.dropDirs(path, m.o.Host.RemoveLeftover)
	}

	return fmt.Errorf("cannot remove %q: no volume is ever mounted there", path)
}

// noteReaders is the maximum number of notes that the agent reads concurrently.
const noteReaders = 8

// CheckNotes reads the notes at the given paths and returns an error for each invalid note.
func (m *Manager) CheckNotes(paths []string) map[string]error {
	bad := map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan string)

	for range noteReaders {
		wg.Go(func() {
			for path := range next {
				if _, err := m.readNote(path); err != nil {
					mu.Lock()
					bad[path] = err
					mu.Unlock()
				}
			}
		})
	}

	for _, path := range paths {
		next <- path
	}

	close(next)
	wg.Wait()
	return bad
}
