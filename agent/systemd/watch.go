package systemd

import (
	"maps"
	"slices"
)

// Watch is told of changes of units.
type Watch struct {
	// C gets one message after changes; Take says of what.
	C    chan struct{}
	b    *Bus
	name string // empty: all units

	// Of Bus.mu.
	names map[string]bool
	all   bool
}

// Watch tells of changes of a unit, or of all with an empty name, from now on,
// as long as there is a connection. A connection that is lost, or a systemd that
// is executed anew, counts as a change of all.
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

// Take returns the units that changed since the last call; all reports that any
// may have.
func (w *Watch) Take() (names []string, all bool) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	names, all = slices.Sorted(maps.Keys(w.names)), w.all
	clear(w.names)
	w.all = false
	return names, all
}

// tell tells those who watch a unit, or all for an empty name; b.mu is held.
func (b *Bus) tell(name string) {
	for w := range b.watches {
		if name != "" && w.name != "" && w.name != name {
			continue
		}
		if name == "" {
			w.all = true
		} else {
			w.names[name] = true
		}
		select {
		case w.C <- struct{}{}:
		default:
		}
	}
}
