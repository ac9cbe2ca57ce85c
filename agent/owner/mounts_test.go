package owner

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// kernel is a fake mount table.
type kernel struct {
	mu      sync.Mutex
	gone    map[uint64]bool
	looks   int
	watches int
	fn      func()
}

func (k *kernel) Gone(m volume.MountIdentity, _ string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks++
	return k.gone[m.ID]
}

func (k *kernel) Changes(ctx context.Context, _ time.Duration, fn func()) error {
	k.mu.Lock()
	k.watches++
	k.fn = fn
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.watches--
	k.mu.Unlock()
	return nil
}

// unmount removes a mount and calls the function that watches the table, if there is one.
func (k *kernel) unmount(id uint64) {
	k.mu.Lock()
	k.gone[id] = true
	fn := k.fn
	k.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// awaitWatches waits until the mount table has the given number of watches.
func (k *kernel) awaitWatches(t *testing.T, want int) {
	t.Helper()
	for end := time.Now().Add(100 * time.Second); ; time.Sleep(time.Millisecond) {
		k.mu.Lock()
		is := k.watches
		k.mu.Unlock()
		if is == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d watch, want %d", is, want)
		}
	}
}

// TestMounts checks that the watcher watches the mount table only while a mount owns a claim. It
// reports the end of each mount once. A mount that the agent itself replaces has not ended.
func TestMounts(t *testing.T) {
	k := &kernel{gone: map[uint64]bool{}}
	w := New(Options{Boot: "b", Mounts: k, Log: hclog.NewNullLogger()})
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		k.awaitWatches(t, 0)
	}()
	mount := func(id uint64) volume.Owner {
		return volume.Owner{Kind: volume.OwnerMount, Boot: "b", Dir: "/srv", Mount: volume.MountIdentity{ID: id}}
	}
	told := func() bool {
		select {
		case <-w.Ended():
			return true
		default:
			return false
		}
	}
	k.awaitWatches(t, 0)
	anew, old := mount(0), mount(7)
	anew.Mount, old.Boot = volume.MountIdentity{}, "before"
	if w.Watch(anew); w.Gone(anew) || w.View(anew).Life != volume.LifeRunning || told() {
		t.Error("what is made anew has ended")
	}
	if w.Watch(old); !w.Gone(old) || !told() {
		t.Error("a mount outlived its boot")
	}
	w.Watch(mount(1))
	w.Watch(mount(2))
	k.awaitWatches(t, 1)
	if told() || w.Gone(mount(1)) {
		t.Error("a mount that is there is gone")
	}
	k.unmount(1)
	if !told() || !w.Gone(mount(1)) || w.View(mount(1)).Life != volume.LifeGone || w.Gone(mount(2)) {
		t.Error("an unmount was not told")
	}
	k.unmount(3) // this mount owns no claim
	if told() {
		t.Error("an end was told twice, or one that is nobody's")
	}
	k.unmount(4)
	if w.Watch(mount(4)); !told() {
		t.Error("what was gone before it was watched was not told")
	}
	w.Keep(func() []volume.Owner { return []volume.Owner{mount(2)} })
	k.awaitWatches(t, 1)
	w.Keep(func() []volume.Owner { return nil })
	k.awaitWatches(t, 0)
	looks := k.looks
	if k.unmount(2); k.looks != looks || told() {
		t.Error("what is not watched any more is looked at")
	}
}
