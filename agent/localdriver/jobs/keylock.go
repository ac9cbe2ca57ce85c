package jobs

import "sync"

// KeyLock lets at most one call at a time hold the lock of a key. It never waits, because CSI
// requires the error ABORTED for a second call on a volume.
type KeyLock struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// Try locks key. The result ok is false if another call holds the lock.
func (l *KeyLock) Try(key string) (unlock func(), ok bool) {
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
