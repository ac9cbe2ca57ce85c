package owner

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Mounts is what the kernel tells of mounts. Neither waits for storage.
type Mounts interface {
	// Gone reports whether the mount that was made at a path is there no more.
	Gone(m volume.MountIdentity, at string) bool
	// Changes calls fn after any mount changed, at most once in a while, until ctx ends.
	Changes(ctx context.Context, apart time.Duration, fn func()) error
}

// changesApart is how much time changes of the mount table have to come together in.
const changesApart = 100 * time.Millisecond

// mounts watches mounts that own claims: all by one watch on the mount table, which is
// there only while there are any. A change costs one question to the kernel for each.
type mounts struct {
	kernel Mounts
	ended  func()
	log    hclog.Logger

	mu      sync.Mutex
	by      map[volume.Owner]*mountWatch
	now     uint64 // counts calls of turn
	cancel  context.CancelFunc
	stopped bool
	wg      sync.WaitGroup
}

type mountWatch struct {
	told    bool
	touched uint64 // the turn in which somebody last asked for it
}

func newMounts(o Options, ended func()) *mounts {
	return &mounts{kernel: o.Mounts, ended: ended, log: o.Log, by: map[volume.Owner]*mountWatch{}}
}

// gone reports whether the mount that an owner is was taken away. While the agent makes
// it anew there is none, and it is not gone.
func (m *mounts) gone(o volume.Owner) bool {
	return m.kernel != nil && o.ByMount() && m.kernel.Gone(o.Mount, o.Dir)
}

// watch watches a mount from now on.
func (m *mounts) watch(o volume.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.kernel == nil {
		return
	}
	w, ok := m.by[o]
	if !ok {
		w = &mountWatch{}
		m.by[o] = w
		m.begin()
		m.look(o, w) // after begin, so that no change falls between the two
	}
	w.touched = m.now
}

// begin watches the mount table, unless that is done; mu is held.
func (m *mounts) begin() {
	if m.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.wg.Go(func() {
		if err := m.kernel.Changes(ctx, changesApart, m.changed); err != nil {
			m.log.Warn("that a volume is unmounted is seen late, by a look every 30 s", "error", err)
		}
	})
}

// changed looks at all mounts.
func (m *mounts) changed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for o, w := range m.by {
		m.look(o, w)
	}
}

// look tells, once, that a mount is gone; mu is held.
func (m *mounts) look(o volume.Owner, w *mountWatch) {
	if !w.told && m.kernel.Gone(o.Mount, o.Dir) {
		w.told = true
		m.ended()
	}
}

// turn begins a round of watch, at whose end drop forgets who was not asked for.
func (m *mounts) turn() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now++
}

func (m *mounts) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for o, w := range m.by {
		if w.touched != m.now {
			delete(m.by, o)
		}
	}
	if len(m.by) == 0 && m.cancel != nil {
		m.cancel()
		m.cancel = nil
	}
}

// stop ends the watch, and waits for that.
func (m *mounts) stop() {
	m.mu.Lock()
	m.stopped = true
	if m.cancel != nil {
		m.cancel()
		m.cancel = nil
	}
	m.mu.Unlock()
	m.wg.Wait()
}
