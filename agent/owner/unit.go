package owner

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// againAfter is the delay before a retry, if the bus is unreachable or systemd did not answer
	// about a unit.
	againAfter = 2 * time.Second
	// secondChance is the default of Options.AskEvery.
	secondChance = 30 * time.Second
)

// units watches systemd units. A D-Bus signal reports that a unit has changed. The agent then asks
// systemd for the current state of that unit.
type units struct {
	log   hclog.Logger
	ended func()
	every time.Duration // interval at which run asks systemd about all units
	bus   *systemd.Bus
	poke  chan struct{} // tells run that it has work

	mu     sync.Mutex
	by     map[string]*unit
	ticket uint64 // number of the last query to systemd
	now    uint64 // number of the current call of Keep; incremented by turn
	failed string // the logged reason why systemd does not answer; empty while it answers
}

// unit is the last known state of a unit. The unit may have a newer invocation than the one that
// owns a claim.
type unit struct {
	systemd.Unit
	known   bool
	asked   uint64 // number of the query that returned this state
	touched uint64 // number of the call of Keep that last called watch for this unit
}

func newUnits(o Options, ended func()) *units {
	u := &units{log: o.Log, ended: ended, every: o.AskEvery, bus: o.Bus, poke: make(chan struct{}, 1), by: map[string]*unit{}}
	if u.every == 0 {
		u.every = secondChance
	}
	return u
}

// run keeps the known states up to date until ctx ends. If there is no unit to watch, run neither
// connects to the bus nor wakes up.
func (u *units) run(ctx context.Context) {
	changed := u.bus.Watch("")
	defer changed.Close()

	var all time.Time // the time when run last asked about all units
	// the epoch of the bus connection at that time; 0 makes run ask about all units
	var of uint64
	timer := time.NewTimer(0)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-changed.C:
			if names, missed := changed.Take(); !missed {
				u.askAll(ctx, u.watched(names))
				continue
			}
			of = 0 // signals may be lost, so ask about all units again
		case <-u.poke:
		case <-timer.C:
		}

		if len(u.names(false)) == 0 {
			timer.Stop()
			continue
		}

		epoch, err := u.bus.Connect(ctx)
		u.connected(err)
		if err != nil {
			timer.Reset(againAfter)
			continue
		}

		every := epoch != of || time.Since(all) >= u.every
		if every {
			all, of = time.Now(), epoch
		}

		if u.askAll(ctx, u.names(!every)) {
			timer.Reset(time.Until(all.Add(u.every)))
		} else {
			timer.Reset(againAfter)
		}
	}
}

// watched returns those of the given units that are watched.
func (u *units) watched(names []string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool { return u.by[name] == nil })
}

// connected logs when the bus becomes unreachable, and when it is reachable again. It logs each of
// the two only once.
func (u *units) connected(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()

	switch {
	case err == nil && u.failed != "":
		u.log.Info("systemd answers questions about units again")
		u.failed = ""
	case err != nil && u.failed != err.Error():
		u.log.Warn("cannot ask systemd about the units that own claims; the agent detaches none of these claims until systemd answers", "error", err)
		u.failed = err.Error()
	}
}

// names returns the names of all watched units. If unknown is true, it returns only units whose
// state is not known yet.
func (u *units) names(unknown bool) []string {
	u.mu.Lock()
	defer u.mu.Unlock()

	var names []string
	for name, w := range u.by {
		if !unknown || !w.known {
			names = append(names, name)
		}
	}

	return names
}

// askAll asks systemd about the given units. It reports whether systemd answered for all of them.
func (u *units) askAll(ctx context.Context, names []string) bool {
	answered := true
	for _, name := range names {
		if _, err := u.ask(ctx, name); err != nil {
			u.log.Debug("cannot ask about a unit", "unit", name, "error", err)
			answered = false
		}
	}

	return answered
}

// ask asks systemd about a unit, and stores the answer if the unit is watched.
func (u *units) ask(ctx context.Context, name string) (systemd.Unit, error) {
	u.mu.Lock()
	u.ticket++
	ticket := u.ticket
	u.mu.Unlock()
	s, err := u.bus.Unit(ctx, name)
	if err != nil {
		return s, err
	}

	u.mu.Lock()
	defer u.mu.Unlock()

	w, ok := u.by[name]
	if !ok {
		w, ok = u.by[s.ID] // the unit is watched under another name
	}
	if !ok || ticket < w.asked {
		return s, nil
	}

	changed := !w.known || w.Invocation != s.Invocation || w.Over() != s.Over()
	w.Unit, w.known, w.asked = s, true, ticket
	if changed {
		u.ended() // the reader of the channel must check which owners have ended
	}

	return s, nil
}

// wake tells run that it has work.
func (u *units) wake() {
	select {
	case u.poke <- struct{}{}:
	default:
	}
}

// watch starts to watch a unit.
func (u *units) watch(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()

	w, ok := u.by[name]
	if !ok {
		w = &unit{}
		u.by[name] = w
		u.wake()
	}

	w.touched = u.now
}

// life returns the last known state of the invocation that owns a claim.
func (u *units) life(o volume.Owner) volume.Life {
	u.mu.Lock()
	defer u.mu.Unlock()

	w, ok := u.by[o.Unit]
	switch {
	case !ok || !w.known:
		return volume.LifeUnknown
	case w.Invocation != o.Invocation || w.Over():
		return volume.LifeGone
	case !u.bus.Connected():
		// the last answer said that the invocation was running, but it may be out of date
		return volume.LifeUnknown
	default:
		return volume.LifeRunning
	}
}

func (u *units) mainPID(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()

	if w, ok := u.by[name]; ok {
		return w.MainPID
	}

	return 0
}

// resolve returns the name of a unit and its current invocation. If systemd does not answer,
// resolve accepts the invocation that the caller gives.
func (u *units) resolve(ctx context.Context, name, invocation string) (unit, current string, err error) {
	if name == "" || len(name) > 255 {
		return "", "", volume.Errorf(volume.ErrInvalid, "%q is not a unit name", name)
	}
	if invocation != "" && !isInvocation(invocation) {
		return "", "", volume.Errorf(volume.ErrInvalid, "%q is not an invocation id, which has 32 hex digits", invocation)
	}

	s, err := u.ask(ctx, name)
	switch {
	case systemd.IsInvalid(err):
		return "", "", volume.Errorf(volume.ErrInvalid, "%q is not a unit name: %v", name, err)
	case err != nil && invocation != "":
		return name, invocation, nil
	case err != nil:
		return "", "", volume.Errorf(volume.ErrRefused, "unit %q cannot own a claim: systemd does not answer: %v", name, err).
			WithHint("claim with --owner none, and detach the claim after use")
	case s.ID == "":
		return "", "", volume.Errorf(volume.ErrRefused, "unit %q cannot own a claim: it is not loaded", name).WithHint("%s", suggest.Command("systemctl status %s", name))
	case s.Over() || s.Active == "deactivating":
		return "", "", volume.Errorf(volume.ErrRefused, "unit %q cannot own a claim: it is %s (%s)", s.ID, s.Active, s.Sub).WithHint("%s", suggest.Command("systemctl start %s", s.ID))
	case s.Invocation == "":
		return "", "", volume.Errorf(volume.ErrRefused, "unit %q cannot own a claim: systemd gave it no invocation id", s.ID)
	case invocation != "" && invocation != s.Invocation:
		return "", "", volume.Errorf(volume.ErrRefused, "invocation %s of unit %q cannot own a claim: it has ended, and the unit was started again", invocation, s.ID)
	}

	u.learn(s)
	return s.ID, s.Invocation, nil
}

// learn starts to watch the unit s, and stores its state. An earlier invocation of the unit then
// counts as gone at once.
func (u *units) learn(s systemd.Unit) {
	u.watch(s.ID)
	u.mu.Lock()
	defer u.mu.Unlock()

	if w := u.by[s.ID]; !w.known {
		w.Unit, w.known, w.asked = s, true, u.ticket
		u.ended()
	}
}

func isInvocation(s string) bool { return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" }

// turn begins a call of Keep.
func (u *units) turn() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now++
}

// drop ends a call of Keep. It stops watching each unit for which watch was not called since the
// last call of turn.
func (u *units) drop() {
	u.mu.Lock()
	defer u.mu.Unlock()

	for name, w := range u.by {
		if w.touched < u.now {
			delete(u.by, name)
		}
	}
}
