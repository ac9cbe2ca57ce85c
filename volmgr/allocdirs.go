package volmgr

import "sync"

// allocDirs tracks the directories that contain the targets of one alloc. The publish of an alloc's
// first volume makes the directory, and the unpublish of its last volume removes it. These steps
// can overlap, so drop must not remove a directory that a publish needs. The mutex is not held
// during a call to the plugin.
type allocDirs struct {
	mu    sync.Mutex
	inUse map[string]int // number of running publishes for each directory
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

// drop removes a directory unless a running publish needs it. A directory that drop keeps is
// removed by a later unpublish.
func (d *allocDirs) drop(dir string, rmdir func(string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inUse[dir] > 0 {
		return nil
	}
	return rmdir(dir)
}
