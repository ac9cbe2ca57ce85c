// Package owner reports whether the owners of claims are alive. An owner is a process, a systemd
// unit or a mount. The package watches processes through pidfds, units through D-Bus and mounts
// through the kernel's mount table. It reports when an owner has ended. Package claim then detaches
// the claim.
//
// The package never guesses that an owner has ended. If systemd does not answer, or if a process
// cannot be examined, the owner keeps its last known state.
package owner

import (
	"context"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/volume"
)

// Watcher watches owners. Its methods are safe for concurrent use. Gone answers from memory, except
// for a mount: for a mount, it asks the kernel. This query never waits for storage.
type Watcher struct {
	boot  string
	ended chan struct{}
	procs *processes
	units *units
	mnts  *mounts

	references func(volume.Owner) int

	keep   sync.Mutex // only one call of Keep may run at a time
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New returns a watcher that watches no owner yet.
func New(o Options) *Watcher {
	w := &Watcher{boot: o.Boot, ended: make(chan struct{}, 1), references: o.References}
	if w.references == nil {
		w.references = func(volume.Owner) int { return 0 }
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	if o.Bus == nil {
		o.Bus = systemd.New(systemd.Options{})
	}
	w.procs = newProcesses(o, w.tell)
	w.units = newUnits(o, w.tell)
	w.mnts = newMounts(o, w.tell)
	return w
}

// Open starts the goroutines of the watcher.
func (w *Watcher) Open() error {
	if err := w.procs.open(); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.wg.Go(w.procs.run)
	w.wg.Go(func() { w.units.run(ctx) })
	return nil
}

// Close stops the watcher and waits until its goroutines have ended.
func (w *Watcher) Close() error {
	w.cancel()
	err := w.procs.stop()
	w.mnts.stop()
	w.wg.Wait()
	return err
}

// Ended returns a channel that receives a value after a watched owner has ended. One value may
// announce the end of several owners. The receiver asks Gone about each owner.
func (w *Watcher) Ended() <-chan struct{} { return w.ended }

func (w *Watcher) tell() {
	select {
	case w.ended <- struct{}{}:
	default:
	}
}

// Watch starts to watch the owner of a claim. The watch lasts until a call of Keep whose list does
// not contain the owner. If the owner has already ended, Watch reports the end at once.
func (w *Watcher) Watch(o volume.Owner) {
	switch {
	case !o.Mortal() || o.Kind == volume.OwnerRuntime:
	case o.Boot != w.boot:
		w.tell()
	case o.Process():
		w.procs.watch(processOf(o))
	case o.ByMount():
		w.mnts.watch(o)
	case o.Kind == volume.OwnerUnit:
		w.units.watch(o.Unit)
	}
}

// Keep continues to watch the owners that list returns, and stops watching all others. If another
// goroutine calls Watch while Keep runs, Keep also keeps the owner of that call.
func (w *Watcher) Keep(list func() []volume.Owner) {
	w.keep.Lock()
	defer w.keep.Unlock()

	w.procs.turn()
	w.units.turn()
	w.mnts.turn()
	for _, o := range list() {
		w.Watch(o)
	}

	w.procs.drop()
	w.units.drop()
	w.mnts.drop()
}

// Gone reports whether the owner is known to have ended.
func (w *Watcher) Gone(o volume.Owner) bool {
	switch {
	case !o.Mortal() || o.Kind == volume.OwnerRuntime:
		return false // when the last container ends, the runtime's volume plugin detaches the claim
	case o.Boot != w.boot:
		return true
	case o.Process():
		return w.procs.gone(processOf(o))
	case o.Kind == volume.OwnerMount:
		return w.mnts.gone(o)
	default:
		return w.units.life(o) == volume.LifeGone
	}
}

// View describes the state of an owner for a status command.
func (w *Watcher) View(o volume.Owner) volume.OwnerView {
	switch {
	case !o.Mortal():
		return volume.OwnerView{Life: volume.LifeRunning}
	case o.Kind == volume.OwnerRuntime:
		return volume.OwnerView{Life: volume.LifeRunning, References: w.references(o)}
	case o.Boot != w.boot:
		return volume.OwnerView{Life: volume.LifeGone}
	case o.Kind == volume.OwnerMount && !o.Process():
		if w.mnts.gone(o) {
			return volume.OwnerView{Life: volume.LifeGone}
		}
		return volume.OwnerView{Life: volume.LifeRunning}
	case o.Process():
		v := volume.OwnerView{Life: w.procs.check(processOf(o))}
		if v.Life != volume.LifeGone {
			v.PID, v.Command = o.PID, command(o.PID)
		}
		return v
	default:
		v := volume.OwnerView{Life: w.units.life(o)}
		if v.Life == volume.LifeRunning {
			v.PID = w.units.mainPID(o.Unit)
			v.Command = command(v.PID)
		}

		return v
	}
}

// Check determines the current state of the owners. The agent calls Check before it refuses a
// request because an owner seems to be alive. If systemd does not answer, Check gives up after a
// time limit.
func (w *Watcher) Check(ctx context.Context, owners []volume.Owner) {
	asked := map[string]bool{}
	for _, o := range owners {
		switch {
		case !o.Mortal() || o.Kind == volume.OwnerRuntime || o.Boot != w.boot:
		case o.Process():
			w.procs.check(processOf(o))
		// no check is needed, because Gone asks the kernel on each call
		case o.Kind == volume.OwnerMount:
		case !asked[o.Unit]:
			asked[o.Unit] = true
			if _, err := w.units.ask(ctx, o.Unit); err != nil {
				w.units.log.Debug("cannot ask about a unit", "unit", o.Unit, "error", err)
			}
		}
	}
}

// Resolve completes an owner and watches it. The caller names a process by its pid, or a unit by
// its name and optionally its invocation. Resolve returns ErrInvalid if these values cannot name an
// owner, and ErrRefused if the owner is not running.
func (w *Watcher) Resolve(ctx context.Context, o volume.Owner) (volume.Owner, error) {
	switch o.Kind {
	case "", volume.OwnerNone:
		return volume.Owner{Kind: volume.OwnerNone}, nil
	case volume.OwnerPID, volume.OwnerMount:
		start, err := resolve(o.PID)
		if err != nil {
			return o, err
		}
		o = volume.Owner{Kind: o.Kind, PID: o.PID, StartTime: start, Boot: w.boot}
	case volume.OwnerUnit:
		unit, invocation, err := w.units.resolve(ctx, o.Unit, o.Invocation)
		if err != nil {
			return o, err
		}
		o = volume.Owner{Kind: volume.OwnerUnit, Unit: unit, Invocation: invocation, Boot: w.boot}
	case volume.OwnerRuntime:
		// Requests over the API set neither field. Only the volume plugin of a container runtime
		// can name such an owner.
		if o.Runtime == "" || o.Volume == "" {
			return o, volume.Errorf(volume.ErrInvalid, "only the volume plugin of a container runtime can make claims that a runtime owns").
				WithHint("docker run -v NAME:DIR")
		}
	default:
		return o, volume.Errorf(volume.ErrInvalid, "unknown kind of owner %q; use one of %s, %s, %s, %s", o.Kind, volume.OwnerPID, volume.OwnerUnit, volume.OwnerMount, volume.OwnerNone)
	}

	w.Watch(o)
	return o, nil
}
