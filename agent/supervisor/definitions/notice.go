package definitions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// These times limit a burst of changes, such as an editor makes. A burst is over after quietFor
// without a change. If a burst does not end, its changes are applied after atMost.
const (
	quietFor = 200 * time.Millisecond
	atMost   = 2 * time.Second
)

// burst holds the times of the changes that have not been applied yet.
type burst struct{ first, last time.Time }

func (b *burst) add(now time.Time) {
	if b.first.IsZero() {
		b.first = now
	}
	b.last = now
}

// due returns the time at which the changes must be applied, or zero if there are no changes.
func (b *burst) due() time.Time {
	if b.first.IsZero() {
		return time.Time{}
	}

	quiet, latest := b.last.Add(quietFor), b.first.Add(atMost)
	if quiet.Before(latest) {
		return quiet
	}

	return latest
}

// meaning is the required reaction to an event of the file system.
type meaning int

const (
	nothing meaning = iota
	reread          // the plugin files may have changed
	relook          // another directory may have to be watched
)

// judge returns the reaction to an event. at is the watched directory, and dir is the directory of
// the plugin files. at is dir, or a directory above it.
func judge(ev fsnotify.Event, at, dir string) meaning {
	name := filepath.Clean(ev.Name)
	switch {
	case name == at && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)):
		return relook
	case at == dir:
		// If the event is about the directory itself, its mode may have changed, and an unreadable
		// file may be readable now.
		if name == dir || isPluginFile(filepath.Base(name)) {
			return reread
		}

	case ev.Has(fsnotify.Create) && (name == dir || strings.HasPrefix(dir, name+"/")):
		return relook
	}

	return nothing
}

// nearest returns dir, or the closest directory above it that exists.
func nearest(dir string) string {
	for {
		info, err := os.Stat(dir)
		above := filepath.Dir(dir)
		if err == nil && info.IsDir() || above == dir {
			return dir
		}

		dir = above
	}
}

// noticer watches for changes of the plugin files. It watches one directory instead of each file,
// because a watch on a file is lost when a rename replaces the file.
type noticer struct {
	w     *fsnotify.Watcher
	dir   string // directory of the plugin files
	at    string // the watched directory
	burst burst
}

// follow watches the directory that is now at the path. It does not report earlier changes there,
// so the caller must read the files afterwards.
func (n *noticer) follow() error {
	for {
		if err := n.w.Remove(n.at); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("cannot stop watching %s: %w", n.at, err)
		}

		n.at = nearest(n.dir)
		switch err := n.w.Add(n.at); {
		case errors.Is(err, fs.ErrNotExist): // the directory was removed in the meantime
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("cannot watch %s: %w: the limit fs.inotify.max_user_watches is reached", n.at, err)
		case err != nil:
			return fmt.Errorf("cannot watch %s: %w", n.at, err)
		case nearest(n.dir) == n.at: // otherwise a nearer directory was made before the watch began
			return nil
		}
	}
}

// see handles one event of the file system.
func (n *noticer) see(ev fsnotify.Event) error {
	what := judge(ev, n.at, n.dir)
	was := n.at
	if what == relook {
		if err := n.follow(); err != nil {
			return err
		}
	}

	if what == reread || what == relook && (was == n.dir || n.at == n.dir) {
		n.burst.add(time.Now())
	}

	return nil
}

// missed handles a loss of events. It must assume that the plugin files have changed.
func (n *noticer) missed() error {
	n.burst.add(time.Now())
	return n.follow()
}
