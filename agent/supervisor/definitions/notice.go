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

// These times limit how long the agent waits for the end of a burst of changes, such as an editor
// makes. A burst is over when quietFor has passed without a change. If a burst does not end, the
// agent applies its changes after atMost.
const (
	quietFor = 200 * time.Millisecond
	atMost   = 2 * time.Second
)

// burst contains the times of the first and last change that have not been applied yet.
type burst struct{ first, last time.Time }

func (b *burst) add(now time.Time) {
	if b.first.IsZero() {
		b.first = now
	}
	b.last = now
}

// due returns the time at which the changes must be applied. It returns the zero time if there are
// no changes.
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

// meaning is the reaction that a file system event requires.
type meaning int

const (
	nothing meaning = iota
	reread          // read the plugin files again, because they may have changed
	relook          // find the directory to watch again, because it may be a different one
)

// judge returns the reaction to an event. The argument at is the watched directory, and dir is the
// directory of the plugin files. The watched directory is dir itself, or a directory above it.
func judge(ev fsnotify.Event, at, dir string) meaning {
	name := filepath.Clean(ev.Name)
	switch {
	case name == at && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)):
		return relook
	case at == dir:
		// An event about the directory itself may be a change of its mode, which can make an
		// unreadable file readable.
		if name == dir || isPluginFile(filepath.Base(name)) {
			return reread
		}

	case ev.Has(fsnotify.Create) && (name == dir || strings.HasPrefix(dir, name+"/")):
		return relook
	}

	return nothing
}

// nearest returns dir if it exists, and otherwise the closest directory above it that exists.
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

// noticer watches the plugin files for changes. It watches one directory instead of each file,
// because a watch on a file is lost when a rename replaces the file.
type noticer struct {
	w     *fsnotify.Watcher
	dir   string // directory of the plugin files
	at    string // the watched directory
	burst burst
}

// follow starts to watch the directory to which the path now leads. It does not report earlier
// changes in this directory, so the caller must read the files afterwards.
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
		// if they differ, a directory closer to n.dir was made before the watch began
		case nearest(n.dir) == n.at:
			return nil
		}
	}
}

// see handles one file system event.
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

// missed handles lost events. It assumes that the plugin files have changed.
func (n *noticer) missed() error {
	n.burst.add(time.Now())
	return n.follow()
}
