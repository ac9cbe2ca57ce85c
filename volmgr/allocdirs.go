package volmgr

import "sync"

// allocDirs tracks the directories that contain the targets of one alloc. The first volume of an
// alloc makes the directory, and the last one removes it. These steps can overlap, so drop must not
// remove a directory that a publish needs. The lock is free during a call to the plugin.
type allocDirs struct {
	mu    sync.Mutex
	inUse map[string]int // number of running publishes, by directory
}

// enter makes a directory and protects it from drop until the caller calls leave.
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

// drop removes a directory unless a publish needs it. In that case, the unpublish of the new volume
// drops the directory later.
func (d *allocDirs) drop(dir string, rmdir func(string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inUse[dir] > 0 {
		return nil
	}
	return rmdir(dir)
}
