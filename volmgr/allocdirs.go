package volmgr

import "sync"

// allocDirs tracks the directories that hold one alloc's targets. The first volume that needs such
// a directory makes it. The last volume to leave removes it. These steps can overlap, so drop must
// not remove a directory that a publish relies on. No lock is held during a call.
type allocDirs struct {
	mu    sync.Mutex
	inUse map[string]int // running publishes
}

// enter makes a directory and protects it from drop until leave.
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

// drop removes a directory unless a publish relies on it. In that case, the unpublish that will
// follow drops the directory.
func (d *allocDirs) drop(dir string, rmdir func(string) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inUse[dir] > 0 {
		return nil
	}
	return rmdir(dir)
}
