package clean

import "sync"

// jobs is the work of a Cleaner that waits for plugins. It runs in parallel with the passes, so that a plugin
// without an answer delays nothing but its own volumes. The client of a plugin limits how many calls
// it makes at the same time.
type jobs struct {
	mu      sync.Mutex
	running map[string]bool
	all     sync.WaitGroup
}

// start runs fn in the background, unless a job of that name runs.
func (j *jobs) start(name string, fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()

	if j.running[name] {
		return
	}
	j.running[name] = true
	j.all.Go(func() {
		fn()
		j.mu.Lock()
		defer j.mu.Unlock()

		delete(j.running, name)
	})
}

// runs reports whether a job of that name runs.
func (j *jobs) runs(name string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()

	return j.running[name]
}
