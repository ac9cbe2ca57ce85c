package cluster_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// cast starts the hosts of a scenario, and returns the host that dies. The first host of the rig does the
// operation, and the second one uses the volume after it.
type cast func(r *rig, driver san.Config, orders string) *harness.Host

// start starts the hosts of the scenario.
func (s scenario) start(r *rig, driver san.Config, orders string) *harness.Host {
	r.t.Helper()
	if s.cast == nil {
		return twoHosts(r, driver, orders)
	}
	return s.cast(r, driver, orders)
}

// twoHosts starts two hosts with the same driver. The first one dies.
func twoHosts(r *rig, driver san.Config, orders string) *harness.Host {
	r.t.Helper()
	a := r.startDying("h1", driver, orders)
	r.hosts = append(r.hosts, r.start("h2", driver))
	return a
}

// requesterDies starts a host without a controller, which dies, and two hosts with one.
func requesterDies(r *rig, driver san.Config, orders string) *harness.Host {
	r.t.Helper()
	a := r.startDying("h1", nodeOnlyOf(driver), orders)
	r.hosts = append(r.hosts, r.start("h2", driver), r.start("h3", driver))
	return a
}

// executorDies starts a host without a controller, and two hosts with one. The host that makes the calls
// for the first one dies: it is the first live host with a controller in the order of the names.
func executorDies(r *rig, driver san.Config, orders string) *harness.Host {
	r.t.Helper()
	r.hosts = append(r.hosts, r.start("h1", nodeOnlyOf(driver)))
	b := r.startDying("h2", driver, orders)
	r.hosts = append(r.hosts, r.start("h3", driver))
	return b
}

// startDying starts one host whose agent dies on an order.
func (r *rig) startDying(name string, driver san.Config, orders string) *harness.Host {
	r.t.Helper()
	h := r.prepare(name, driver)
	r.hosts = append(r.hosts, h)
	launch(h, orders)
	return h
}

// lentScenarios returns the scenarios in which the first host has no controller.
func lentScenarios() (all []scenario) {
	for _, s := range scenarios {
		if s.name != "claim" && s.name != "detach" {
			continue
		}
		operation := s.name
		s.sans = []san.Config{attaching}
		s.name, s.cast = operation+" without a controller", requesterDies
		all = append(all, s)
		s.name, s.cast = operation+" through another host", executorDies
		all = append(all, s)
	}
	return all
}

// expectOneUndoer asserts that since the first n events of the SAN, only one host has made the calls that
// end each attachment, and that each attachment has ended once. The SAN must have no attachments.
func (r *rig) expectOneUndoer(n int) {
	r.t.Helper()
	events := r.san.Events()
	for _, e := range secondUndoers(events[n:]) {
		r.t.Errorf("a second host ends an attachment: %s", e)
	}

	ended := map[string]int{}
	for _, e := range events {
		switch {
		case e.Kind == san.KindAttach && e.Method == "ControllerPublishVolume":
			ended[e.Attachment] += 0
		case e.Kind == san.KindDetach && e.Method == "ControllerUnpublishVolume":
			ended[e.Attachment]++
		}
	}
	for id, times := range ended {
		if times != 1 {
			r.t.Errorf("attachment %s has ended %d times", id, times)
		}
	}
}

// secondUndoers returns the calls of ControllerUnpublishVolume that end an attachment for which another
// host has made this call before. A host may repeat its own call. An attachment of the same volume to the
// same node begins anew.
func secondUndoers(events []san.Event) (second []san.Event) {
	type pair struct{ volume, target string }
	first := map[pair]string{}
	for _, e := range events {
		switch {
		case e.Kind == san.KindAttach:
			delete(first, pair{e.Volume, e.Node})
		case e.Kind == san.KindCall && e.Method == "ControllerUnpublishVolume":
			key := pair{e.Volume, e.Target}
			if by, ok := first[key]; ok && by != e.Node {
				second = append(second, e)
				continue
			}
			first[key] = e.Node
		}
	}
	return second
}

// TestSecondUndoers checks the judge of expectOneUndoer.
func TestSecondUndoers(t *testing.T) {
	attach := san.Event{Kind: san.KindAttach, Volume: "v", Node: "h1"}
	undo := func(seq int64, by, volume string) san.Event {
		return san.Event{Seq: seq, Kind: san.KindCall, Method: "ControllerUnpublishVolume", Node: by, Target: "h1", Volume: volume}
	}
	for name, c := range map[string]struct {
		events []san.Event
		want   []int64
	}{
		"one host repeats":      {events: []san.Event{attach, undo(1, "h1", "v"), undo(2, "h1", "v")}},
		"a second host":         {events: []san.Event{attach, undo(1, "h1", "v"), undo(2, "h2", "v")}, want: []int64{2}},
		"a new attachment":      {events: []san.Event{undo(1, "h1", "v"), attach, undo(2, "h2", "v")}},
		"different volumes":     {events: []san.Event{undo(1, "h1", "v"), undo(2, "h2", "w")}},
		"without an attachment": {events: []san.Event{undo(1, "h1", "v"), undo(2, "h2", "v"), undo(3, "h1", "v")}, want: []int64{2}},
	} {
		var got []int64
		for _, e := range secondUndoers(c.events) {
			got = append(got, e.Seq)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %s", name, cmp.Diff(c.want, got))
		}
	}
}
