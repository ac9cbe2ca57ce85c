package localdriver

import "sync"

// keyLock gives each key to one holder at a time and never waits, because CSI wants ABORTED for a
// second call on a volume.
type keyLock struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// try locks key. If another call holds it, ok is false.
func (l *keyLock) try(key string) (unlock func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if _, taken := l.held[key]; taken {
		return nil, false
	}

	if l.held == nil {
		l.held = make(map[string]struct{})
	}
	l.held[key] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, key)
	}, true
}
