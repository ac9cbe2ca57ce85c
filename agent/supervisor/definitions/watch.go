package definitions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Watch reads the plugin files each time they change, until ctx ends. If it cannot watch the files,
// it logs the reason once, and tries again at the next Reload.
func (d *Definitions) Watch(ctx context.Context) {
	said := ""
	for {
		err := d.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if now := fmt.Sprint(err); now != said {
			said = now
			d.opts.Logger.Warn("cannot watch the plugin files; changes are read only on SIGHUP (systemctl reload volagent)", "error", err)
		} else {
			d.opts.Logger.Debug("changed plugin files are still not noticed", "error", err)
		}

		d.catchUp()
		select {
		case <-ctx.Done():
			return
		case <-d.look:
		}
	}
}

// watch watches the plugin files until ctx ends or the watch fails.
func (d *Definitions) watch(ctx context.Context) (err error) {
	w, err := fsnotify.NewWatcher()
	if errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("%w: the limit fs.inotify.max_user_instances, or that of open files, is reached", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()

	n := &noticer{w: w, dir: filepath.Clean(d.opts.Dir)}
	if err := n.follow(); err != nil {
		return err
	}

	d.catchUp()
	due := time.NewTimer(math.MaxInt64) // the timer is stopped while no change is waiting
	due.Stop()
	defer due.Stop()

	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-w.Events:
			if !open {
				return errors.New("the watch has ended")
			}

			err = n.see(ev)

		case lost, open := <-w.Errors: // most likely, the kernel's event queue has overflowed
			if !open {
				return errors.New("the watch has ended")
			}

			d.opts.Logger.Debug("changes of plugin files may have been missed", "error", lost)
			err = n.missed()

		case <-d.look:
			// The path may now lead to another directory, because of a changed link or a new mount.
			// The kernel reports no event for this.
			err = n.follow()
			d.catchUp()

		case <-due.C:
			n.burst = burst{}
			d.takeNotice()
		}

		if err != nil {
			return err
		}
		if at := n.burst.due(); !at.IsZero() {
			due.Reset(time.Until(at))
		}
	}
}

// catchUp applies changes that were made before the watch began.
func (d *Definitions) catchUp() {
	if d.stale() {
		d.takeNotice()
	}
}

// takeNotice reads the plugin files after they have changed.
func (d *Definitions) takeNotice() {
	if err := d.readAgain(); err != nil {
		d.opts.Logger.Error("the plugin files changed and were not read", "error", err)
		return
	}
	d.opts.Logger.Info("the plugin files changed and were read")
}
