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

// Leftover is a name where volumes are mounted that is at no path that is known.
type Leftover struct {
	Path     string
	Contents mount.Contents
	Err      error // why it could not be looked at
}

// all is every entry of a directory, and some as many as are told.
const (
	all  = -1
	some = 4
)

// Leftovers lists the names below the root where a volume may be mounted, and the
// directories of allocs that are empty, but for the paths that are known and what is
// above them. Nothing that is mounted is looked into. What could not be listed is in
// the error, beside what could.
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

// lister makes the list.
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
		return // a mount is found in the table, and a path that is gone is no matter
	}
	l.found = append(l.found, Leftover{Path: path, Contents: c, Err: err})
}

// alloc looks at what one alloc's targets are in, and at its private ones. The directory
// itself is one if nothing is in it.
func (l *lister) alloc(dir string) {
	c, err := l.m.o.Host.Contents(l.ctx, dir, all, false)
	switch {
	case err != nil:
		l.errs = append(l.errs, err)
	case c.Mounted, c.Kind != mount.KindDir: // the latter nobody made for an alloc
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

// RemoveLeftover removes what Leftovers found, if it is empty still, and of a target
// the directory of its alloc, if it was the last. Whoever calls sees to it that nothing
// is mounted there meanwhile. Any other path is refused.
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

// noteReaders bounds the notes that are read at a time.
const noteReaders = 8

// CheckNotes reads the notes at some paths, and says of each that makes no sense why.
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
