package owner

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// changesInterval is the minimum time between two checks for changes of the mount table.
const changesInterval = 100 * time.Millisecond

// mounts watches the mounts that own claims, with one watch on the mount table. The watch runs only
// while a claim has such an owner. Each change of the table costs one system call for each watched
// mount.
type mounts struct {
	kernel Mounts
	ended  func()
	log    hclog.Logger

	mu      sync.Mutex
	by      map[volume.Owner]*mountWatch
	now     uint64 // number of the current call of Keep; incremented by turn
	cancel  context.CancelFunc
	stopped bool
	wg      sync.WaitGroup
}

type mountWatch struct {
	told    bool
	touched uint64 // number of the call of Keep that last called watch for this mount
}

func newMounts(o Options, ended func()) *mounts {
	return &mounts{kernel: o.Mounts, ended: ended, log: o.Log, by: map[volume.Owner]*mountWatch{}}
}

// gone reports whether another process has unmounted the owner. While the agent itself replaces the
// mount, the mount does not count as gone.
func (m *mounts) gone(o volume.Owner) bool {
	return m.kernel != nil && o.ByMount() && m.kernel.Gone(o.Mount, o.Dir)
}

// watch starts to watch a mount.
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
		m.look(o, w) // call look after begin, so that no change is missed
	}

	w.touched = m.now
}

// begin starts the watch on the mount table, unless it is already running. The caller holds mu.
func (m *mounts) begin() {
	if m.cancel != nil {
		return
	}

	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.wg.Go(func() {
		if err := m.kernel.Changes(ctx, changesInterval, m.changed); err != nil {
			m.log.Warn("cannot watch the mount table; unmounts are noticed within 30 s", "error", err)
		}
	})
}

// changed checks all watched mounts.
func (m *mounts) changed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for o, w := range m.by {
		m.look(o, w)
	}
}

// look checks whether a mount still exists. It reports the end of the mount once. The caller holds
// mu.
func (m *mounts) look(o volume.Owner, w *mountWatch) {
	if !w.told && m.kernel.Gone(o.Mount, o.Dir) {
		w.told = true
		m.ended()
	}
}

// turn begins a call of Keep. Keep then calls watch for each mount that it keeps. At the end of
// Keep, drop stops watching all other mounts.
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

// stop ends the watch on the mount table and waits until its goroutine has ended.
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
