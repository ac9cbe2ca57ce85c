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

// A burst of changes, such as an editor makes, is over after quietFor without a change. A burst
// that does not end is applied after atMost.
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

// due returns when the changes must be applied; zero if there are none.
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

// meaning is the consequence of an event.
type meaning int

const (
	nothing meaning = iota
	reread          // the plugin files may have changed
	relook          // another directory may have to be watched
)

// judge returns the meaning of an event while the directory at is watched for the plugin files in
// dir. at is dir, or a directory above it.
func judge(ev fsnotify.Event, at, dir string) meaning {
	name := filepath.Clean(ev.Name)
	switch {
	case name == at && (ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename)):
		return relook
	case at == dir:
		// The directory itself changed: an unreadable file may be readable now.
		if name == dir || isPluginFile(filepath.Base(name)) {
			return reread
		}

	case ev.Has(fsnotify.Create) && (name == dir || strings.HasPrefix(dir, name+"/")):
		return relook
	}

	return nothing
}

// nearest returns dir, or the first existing directory above it.
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

// noticer watches for changes of the plugin files. It watches one directory and no file: if a file
// is replaced by renaming, a watch on the file is lost.
type noticer struct {
	w     *fsnotify.Watcher
	dir   string // of the plugin files
	at    string // the directory that is watched
	burst burst
}

// follow watches the directory that is at the path now. Earlier changes there are not reported, so
// the caller must read the files afterwards.
func (n *noticer) follow() error {
	for {
		if err := n.w.Remove(n.at); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("cannot let go of %s: %w", n.at, err)
		}

		n.at = nearest(n.dir)
		switch err := n.w.Add(n.at); {
		case errors.Is(err, fs.ErrNotExist): // it was removed in the meantime
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("cannot watch %s: %w: the limit fs.inotify.max_user_watches is reached", n.at, err)
		case err != nil:
			return fmt.Errorf("cannot watch %s: %w", n.at, err)
		case nearest(n.dir) == n.at: // otherwise a nearer directory was made before the watch began
			return nil
		}
	}
}

// see processes an event.
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

// missed handles the loss of events.
func (n *noticer) missed() error {
	n.burst.add(time.Now())
	return n.follow()
}
