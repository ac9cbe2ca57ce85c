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

// Watch reads the plugin files when they change, until ctx ends. If it cannot watch them, it logs
// the reason once, and tries again at the next Reload.
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
	due := time.NewTimer(math.MaxInt64) // stopped while no change has to be applied
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

		case lost, open := <-w.Errors: // the usual cause is an overflow of the kernel's event queue
			if !open {
				return errors.New("the watch has ended")
			}

			d.opts.Logger.Debug("changes of plugin files may have been missed", "error", lost)
			err = n.missed()

		case <-d.look:
			// A changed link or a new mount may have moved the path to another directory. The
			// kernel reports no event for this.
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

// catchUp applies the changes that were made while there was no watch.
func (d *Definitions) catchUp() {
	if d.stale() {
		d.takeNotice()
	}
}

// takeNotice reads the plugin files after a change.
func (d *Definitions) takeNotice() {
	if err := d.readAgain(); err != nil {
		d.opts.Logger.Error("the plugin files changed and were not read", "error", err)
		return
	}
	d.opts.Logger.Info("the plugin files changed and were read")
}
