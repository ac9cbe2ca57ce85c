package dockervol

import (
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// activity stores which Mount calls run, and when the agent last received a call about each
// reference. The reference of a container that is just starting must not count as leaked.
type activity struct {
	mu       sync.Mutex
	mounting map[string]int              // number of running Mount calls, by runtime
	turn     uint64                      // number of the last Mount call
	touched  map[string]map[string]touch // by the name's key and the reference's id
}

// beginMount counts a running Mount of a runtime, until the caller calls done. The runtime is about
// to start a container. Until the container exists, no reference of this runtime counts as leaked.
func (a *activity) beginMount(runtime string) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.mounting == nil {
		a.mounting = map[string]int{}
	}
	a.mounting[runtime]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()

		a.mounting[runtime]--
	}
}

// isMounting reports whether a Mount request from the runtime is in progress.
func (a *activity) isMounting(runtime string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mounting[runtime] > 0
}

// addMount records that a Mount for a reference begins, and returns the number of the Mount. The
// caller holds the lock of the name.
func (a *activity) addMount(key, id string, now time.Time) (turn uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.turn++
	a.set(key, id, touch{a.turn, now})
	return a.turn
}

// endMount records that a Mount for a reference ends now.
func (a *activity) endMount(key, id string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if t, ok := a.touched[key][id]; ok {
		a.set(key, id, touch{t.turn, now})
	}
}

// last returns when the agent last received a call about a reference. For a reference from disk, it
// returns the time of the first call of last.
func (a *activity) last(key, id string, now time.Time) touch {
	a.mu.Lock()
	defer a.mu.Unlock()

	t, ok := a.touched[key][id]
	if !ok {
		t = touch{at: now}
		a.set(key, id, t)
	}
	return t
}

// set stores the touch of a reference. The caller holds the lock of the activity.
func (a *activity) set(key, id string, t touch) {
	if a.touched == nil {
		a.touched = map[string]map[string]touch{}
	}
	if a.touched[key] == nil {
		a.touched[key] = map[string]touch{}
	}
	a.touched[key][id] = t
}

// forget deletes the times of references that the volume no longer has. The caller holds the lock
// of the name.
func (a *activity) forget(v volume.RuntimeVolume) {
	a.mu.Lock()
	defer a.mu.Unlock()

	key := v.Key()
	for id := range a.touched[key] {
		if !slices.ContainsFunc(v.Refs, func(r volume.RuntimeRef) bool { return r.ID == id }) {
			delete(a.touched[key], id)
		}
	}
	if len(a.touched[key]) == 0 {
		delete(a.touched, key)
	}
}
