// Package owner reports which owners are alive: processes through pidfds, units of the system's
// service manager through D-Bus, mounts through the kernel. It watches the owners that claims name
// and reports when one has ended. Other packages decide the consequences for a claim.
//
// The package treats no owner as gone without an answer. If the bus cannot be reached, or a process
// cannot be examined, the owner keeps its last known state.
package owner

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/volume"
)

// Options configures a Watcher.
type Options struct {
	Boot string // the boot id of the host
	Log  hclog.Logger

	// MaxPidfds is the maximum number of processes that are watched through a descriptor. The
	// others are polled every PollEvery. 0 means half of RLIMIT_NOFILE, and 1 s.
	MaxPidfds int
	PollEvery time.Duration
	// AskEvery is the interval between questions to systemd about all units, in case a signal was
	// lost; 0 means 30 s.
	AskEvery time.Duration
	// Bus is the connection to systemd, which the caller keeps and closes. If nil, the watcher
	// makes its own.
	Bus *systemd.Bus
	// Mounts reports mounts that are owners; nil: no owner is a mount.
	Mounts Mounts
	// References counts the containers that refer to a runtime's volume; nil: there are none.
	References func(o volume.Owner) int
}

// Watcher watches owners. Its methods are safe for concurrent use. Gone answers from memory. For
// mounts, it asks the kernel, which does not wait for storage either.
type Watcher struct {
	boot  string
	ended chan struct{}
	procs *processes
	units *units
	mnts  *mounts

	references func(volume.Owner) int

	keep   sync.Mutex // serializes Keep
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New returns a watcher without any owner to watch.
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

// Open starts watching.
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

// Close stops watching and waits until all goroutines have ended.
func (w *Watcher) Close() error {
	w.cancel()
	err := w.procs.stop()
	w.mnts.stop()
	w.wg.Wait()
	return err
}

// Ended returns a channel that receives a message after a watched owner has ended. One message may
// stand for several owners. Gone reports which ones have ended.
func (w *Watcher) Ended() <-chan struct{} { return w.ended }

func (w *Watcher) tell() {
	select {
	case w.ended <- struct{}{}:
	default:
	}
}

// Watch watches an owner, the keeper of a claim, until a Keep that does not name it. If the owner
// has ended already, Watch reports that as if it had ended now.
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

// Keep continues to watch the owners that list returns, and owners that are passed to Watch after
// the call to list. It stops watching all others.
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

// Gone reports whether an owner is known to have ended.
func (w *Watcher) Gone(o volume.Owner) bool {
	switch {
	case !o.Mortal() || o.Kind == volume.OwnerRuntime:
		return false // the runtime's volume plugin detaches the claim after the last container
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

// View describes an owner for people.
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

// Check asks again about owners, before a request is refused because of them. The time limit for
// systemd's answers also limits Check.
func (w *Watcher) Check(ctx context.Context, owners []volume.Owner) {
	asked := map[string]bool{}
	for _, o := range owners {
		switch {
		case !o.Mortal() || o.Kind == volume.OwnerRuntime || o.Boot != w.boot:
		case o.Process():
			w.procs.check(processOf(o))
		case o.Kind == volume.OwnerMount: // Gone asks the kernel each time
		case !asked[o.Unit]:
			asked[o.Unit] = true
			if _, err := w.units.ask(ctx, o.Unit); err != nil {
				w.units.log.Debug("cannot ask about a unit", "unit", o.Unit, "error", err)
			}
		}
	}
}

// Resolve completes an owner that a caller named by its pid, or by its unit and perhaps the
// invocation, and watches it. It returns ErrInvalid if the caller's value cannot name an owner, and
// ErrRefused if the owner is not running.
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
		if o.Runtime == "" || o.Volume == "" { // as in a request over the API
			return o, volume.Errorf(volume.ErrInvalid, "only the volume plugin of a container runtime makes claims that belong to the runtime").
				WithHint("docker run -v NAME:DIR")
		}
	default:
		return o, volume.Errorf(volume.ErrInvalid, "unknown kind of owner %q; one of %s, %s, %s, %s", o.Kind, volume.OwnerPID, volume.OwnerUnit, volume.OwnerMount, volume.OwnerNone)
	}

	w.Watch(o)
	return o, nil
}
