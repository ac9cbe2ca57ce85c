// Package simulation_test simulates a cluster of hosts with a virtual clock. The services of each host are
// real, and the storage is the judge.
package simulation_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/agent/secret"
)

// These flags control the simulation.
var (
	seedFlag = flag.Uint64("simulation.seed", 0, "simulate only this seed; 0 is a fixed set of seeds")
	forFlag  = flag.Duration("simulation.for", 20*time.Minute, "the virtual time of each run")
)

// These are the limits of a run.
const (
	simulatedHosts   = 8
	simulatedVolumes = 24
	stuckAfter       = time.Minute // of real time without a second of virtual time
)

// box is the key by which the results of tasks are sealed for one host.
type box struct {
	*secret.Box
	public []byte
}

// newBoxes returns the keys of all hosts.
func newBoxes(t *testing.T) (all []*box) {
	t.Helper()
	for i := range simulatedHosts {
		b, err := secret.OpenBox(filepath.Join(t.TempDir(), fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &box{b, b.PublicKey()})
	}
	return all
}

// guard ends the process with the stacks of all goroutines if the virtual clock stands still. A busy loop
// would otherwise stop the virtual clock, and with it every timeout inside the simulation.
func guard(virtual func() int64) (stop func()) {
	debug.SetTraceback("all")
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last, since := virtual(), time.Now()
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-quit:
				tick.Stop()
				return
			case <-tick.C:
			}
			if now := virtual(); now != last {
				last, since = now, time.Now()
			}
			if time.Since(since) > stuckAfter {
				panic(fmt.Sprintf("the simulation is stuck at the virtual time %s", time.Duration(last)))
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// TestSimulation lets clusters live through random faults. The storage, the store and the hosts show whether
// the rules of the cluster hold: invariants I1 to I4, I7, I8 and I11. The ends of the faults show I4, which the
// cheaper tests cannot show.
func TestSimulation(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if testing.Short() {
		seeds = seeds[:2]
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	boxes := newBoxes(t)
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { simulate(t, seed, boxes, oldBoots{*outdatedFlag, *oftenFlag}) })
	}
}

// TestOldRecords is TestSimulation with hosts that boot with old records in about half of all faults.
func TestOldRecords(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if testing.Short() {
		seeds = seeds[:1]
	}
	boxes := newBoxes(t)
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { simulate(t, seed, boxes, oldBoots{true, 15}) })
	}
}

// simulate runs one seed.
func simulate(t *testing.T, seed uint64, boxes []*box, old oldBoots) {
	t.Helper()
	var at atomic.Pointer[world]
	defer guard(func() int64 {
		if w := at.Load(); w != nil {
			return w.virtual.Load()
		}
		return 0
	})()
	var failed, report string
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, simulatedHosts, simulatedVolumes, boxes)
		at.Store(w)
		newRun(w, old).run(*forFlag)
		report = w.report()
		if w.over() {
			failed = w.broken + "\n" + w.history(w.about)
		}
	})
	t.Log(report)
	if failed != "" {
		t.Error(failed)
	}
}
