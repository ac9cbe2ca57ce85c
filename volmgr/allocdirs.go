package volmgr

import "sync"

// allocDirs are the directories that hold one alloc's targets. The first volume
// to need one makes it and the last to leave removes it, each at its own time:
// so one must not go while a publish relies on it. No lock is held across a call.
type allocDirs struct {
	mu    sync.Mutex
	inUse map[string]int // publishes in hand
}

// enter makes a directory and keeps it until leave.
func (d *allocDirs) enter(dir string, mkdir func(string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := mkdir(dir); err != nil {
		return err
	}
	if d.inUse == nil {
		d.inUse = map[string]int{}
	}
	d.inUse[dir]++
	return nil
}

func (d *allocDirs) leave(dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inUse[dir]--; d.inUse[dir] == 0 {
		delete(d.inUse, dir)
	}
}

// drop removes a directory that no publish relies on. One that is relied on has
// an unpublish to come, which drops it.
func (d *allocDirs) drop(dir string, rmdir func(string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inUse[dir] > 0 {
		return nil
	}
	return rmdir(dir)
}
