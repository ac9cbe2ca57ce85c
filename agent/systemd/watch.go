package systemd

import (
	"maps"
	"slices"
)

// Watch returns a Watch that reports changes of one unit, or of all units if name is empty. The
// Watch reports changes from now on, while the Bus is connected. If the Bus loses the connection or
// systemd is re-executed, the Watch reports that any unit may have changed.
func (b *Bus) Watch(name string) *Watch {
	w := &Watch{C: make(chan struct{}, 1), b: b, name: name, names: map[string]bool{}}
	b.mu.Lock()
	defer b.mu.Unlock()

	b.watches[w] = struct{}{}
	return w
}

// Close ends the watch.
func (w *Watch) Close() {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	delete(w.b.watches, w)
}

// Take returns the units that have changed since the last call of Take. If all is true, any unit
// may have changed.
func (w *Watch) Take() (names []string, all bool) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()

	names, all = slices.Sorted(maps.Keys(w.names)), w.all
	clear(w.names)
	w.all = false
	return names, all
}
