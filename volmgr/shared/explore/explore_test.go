// Package explore_test explores two hosts that share one volume. It combines the decisions of packages
// volmgr/shared and volmgr/volume with a store, a storage system, and all failures within a budget:
//
//	store_test.go     a store with the revisions and transactions of etcd
//	state_test.go     the state of both hosts, and the key that identifies it
//	host_test.go      the agent of a host, and its volume
//	turn_test.go      how an agent makes transactions and controller calls
//	register_test.go  the registration of a host
//	clean_test.go     the end of calls of hosts that are gone
//	fence_test.go     the fencing of a host
//	events_test.go    all events
//	orderly_test.go   orders of persons, and processes that use the volume
//	restore_test.go   a restore of the store from a backup
//	rules_test.go     the rules that hold in each state
package explore_test

import (
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
)

var full = flag.Bool("explore.full", false, "let TestExplore take minutes and visit millions of states")

// variants are the kinds of volumes and proofs.
var variants = []variant{
	{name: "detach", attach: true, stage: true, lists: true, fence: plugin.FenceDetach, least: 15_000},
	{name: "detach, not listed", attach: true, fence: plugin.FenceDetach, least: 15_000},
	{name: "hook", attach: true, stage: true, lists: true, fence: plugin.FenceHook, least: 20_000},
	{
		name: "hook, no attachment", stage: true, fence: plugin.FenceHook, least: 15_000,
		quick: []budget{{mounted: true, saved: true, claims: 1, leases: 1, restores: 1}},
		wide:  []budget{{mounted: true, claims: 1, leases: 1, restores: 1}, {mounted: true, claims: 1, outages: 1, persons: 1, restores: 1}},
	},
	{name: "person", attach: true, stage: true, lists: true, least: 300},
}

// quick are the budgets of the quick form.
var quick = []budget{
	{mounted: true, claims: 1, leases: 1},
	{mounted: true, claims: 1, outages: 1, persons: 1},
	{mounted: true, claims: 1, crashes: 1},
	{claims: 1, leases: 1},
	{claims: 2, leases: 1},
	{mounted: true, claims: 1, leases: 1, races: 1},
	{mounted: true, claims: 1, leases: 1, faults: 1},
	{mounted: true, claims: 1, leases: 1, sticks: 1},
	{mounted: true, claims: 1, leases: 1, lends: 1},
	{mounted: true, claims: 1, stops: 1},
	{mounted: true, claims: 1, moves: 1},
	{mounted: true, claims: 1, restores: 1},
}

// wide are the budgets of the full form.
var wide = []budget{
	{mounted: true, claims: 1, leases: 1, faults: 1, races: 1},
	{mounted: true, claims: 1, leases: 1, crashes: 1, races: 1},
	{mounted: true, claims: 1, leases: 1, crashes: 1, faults: 1},
	{mounted: true, claims: 1, leases: 2, races: 1},
	{mounted: true, claims: 1, outages: 1, persons: 1, races: 1},
	{claims: 2, releases: 1, leases: 1},
	{claims: 2, releases: 1, crashes: 1},
	{claims: 2, leases: 1, crashes: 1},
	{claims: 2, leases: 1, races: 1},
	{claims: 2, leases: 1, faults: 1},
	{mounted: true, claims: 1, leases: 1, crashes: 1, sticks: 1},
	{mounted: true, claims: 2, leases: 1, sticks: 1},
	{mounted: true, claims: 1, leases: 1, crashes: 1, lends: 1},
	{mounted: true, claims: 1, stops: 1, races: 1},
	{mounted: true, claims: 1, releases: 1, leases: 1, moves: 1},
	{claims: 2, releases: 1, restores: 1},
}

// TestExplore visits every state that is possible within the budgets. It checks the rules in
// rules_test.go in each state: invariants I1, I2, I3, I7 and I11. It also checks that the hosts can reach a clean
// state from there without further failures, which is invariant I10.
func TestExplore(t *testing.T) {
	percent := debug.SetGCPercent(400) // the states need the memory anyway
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	within := time.Minute
	if *full {
		within = 40 * time.Minute
	}

	var states, steps atomic.Int64
	t.Cleanup(func() { t.Logf("%d states, %d steps in all", states.Load(), steps.Load()) })
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			budgets := slices.Concat(quick, v.quick)
			switch {
			case testing.Short():
				budgets = quick[:5]
			case *full:
				budgets = slices.Concat(wide, v.wide)
			}
			found, ran := 0, 0
			for _, b := range budgets {
				t.Run(b.String(), func(t *testing.T) {
					begun := time.Now()
					x := &explorer{v: v, b: b, seen: map[key]int32{}, until: begun.Add(within)}
					if bad := x.run(); bad != "" {
						t.Fatal(bad)
					}
					t.Logf("%d states, %d steps, %d clean, %s", len(x.nodes), x.steps, x.clean, time.Since(begun).Round(time.Millisecond))
					found, ran = found+len(x.nodes), ran+1
					states.Add(int64(len(x.nodes)))
					steps.Add(int64(x.steps))
				})
			}
			if whole := ran == len(budgets) && !testing.Short(); whole && found < v.least {
				t.Errorf("%d states, want at least %d: the exploration has lost events", found, v.least)
			}
		})
	}
}

// mostStates limits the states of one budget.
const mostStates = 4_000_000

// explorer runs one breadth-first search. The first failure that it finds therefore has a shortest list
// of events before it.
type explorer struct {
	v     variant
	b     budget
	seen  map[key]int32
	nodes []node
	edges []edge // of fair events
	steps int
	clean int
	until time.Time

	without condition // is left out of all transactions
	tab     *tables

	queue []todo
}

// node is one state. The events that lead to it are its story.
type node struct {
	from int32
	what string
	host int

	clean, cleanOff bool
	off             bool // a host has no power
}

// edge leads from one state to another by a fair event. If starts is set, the event is the start of a
// host that had no power.
type edge struct {
	from, to int32
	starts   bool
}

type todo struct {
	s  state
	at int32
}

// first returns the state in which both hosts are registered, and no host uses the volume.
func first(v variant, b budget) state {
	s := state{left: b, attaches: v.attach, store: store{tab: newTables()}}
	put := func(key string, raw []byte) {
		s.store, _ = s.store.do(shared.Txn{Then: []shared.Op{shared.Put(key, raw)}})
	}
	put(shared.MetaKey, shared.Entry[shared.Meta]{}.Encode(shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}))
	put(shared.VolumeKey(id), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: v.volume(), Attach: v.attach}))
	put(shared.UseKey(id), shared.Entry[shared.Use]{}.Encode(shared.Use{Generation: 1}))
	s.left = budget{}
	for x := range s.hosts {
		s.start(x)
		s.registers(v, x, func(next state, _ string, _ int) { s = next })
	}
	if b.mounted {
		s.claim(v, 0)
		for range 10 {
			s.steps(v, 0, func(next state, _ string, _ int) { s = next })
		}
	}
	if b.saved {
		s.backup = s.durable()
	}
	s.left = b
	s.left.hooks = 1
	return s
}

// run visits all states. It returns a description of the first failure, or "".
func (x *explorer) run() string {
	start := first(x.v, x.b)
	start.store.tab.without = x.without
	x.tab = start.store.tab
	x.add(start, -1, "start", 0)
	for len(x.queue) > 0 {
		now := x.queue[0]
		x.queue[0] = todo{}
		x.queue = x.queue[1:]
		if bad := now.s.check(); bad != "" {
			return bad + "\n" + x.story(now.at) + now.s.String()
		}
		if len(x.nodes) > mostStates || time.Now().After(x.until) {
			return fmt.Sprintf("the exploration has reached its limit after %d states\n%s", len(x.nodes), x.story(now.at)+now.s.String())
		}
		x.expand(now)
	}
	if at, bad := x.unsettled(); bad != "" {
		return bad + "\n" + x.story(at)
	}
	return ""
}

// expand adds all states that can follow a state.
func (x *explorer) expand(now todo) {
	s := now.s
	n := &x.nodes[now.at]
	n.off = s.hosts[0].off || s.hosts[1].off
	n.clean, n.cleanOff = s.unclean(x.v, true) == "", n.off && s.unclean(x.v, false) == ""
	if n.clean {
		x.clean++
	}

	for _, one := range fair {
		one.add(s, x.v, func(next state, what string, host int) {
			starts := one.name == "start" && s.hosts[host].off
			x.edges = append(x.edges, edge{now.at, x.add(next, now.at, what, host), starts})
		})
	}
	for _, one := range faults {
		one.add(s, x.v, func(next state, what string, host int) { x.add(next, now.at, what, host) })
	}
}

// add puts a state into the queue, unless the state was already in the queue before.
func (x *explorer) add(s state, from int32, what string, host int) int32 {
	x.steps++
	k, revs := s.key()
	if at, ok := x.seen[k]; ok && s.bad == "" {
		return at
	}
	s.rank(revs)
	at := int32(len(x.nodes))
	x.seen[k] = at
	x.nodes = append(x.nodes, node{from: from, what: what, host: host})
	x.queue = append(x.queue, todo{s, at})
	return at
}

// unsettled returns the first state from which fair events lead to no clean state. The first pass lets all
// hosts return. In the second one, hosts without power stay off, and a person says so.
func (x *explorer) unsettled() (at int32, bad string) {
	into := make([][]int32, len(x.nodes)) // the edges into each state
	for i, e := range x.edges {
		into[e.to] = append(into[e.to], int32(i))
	}
	for _, all := range []bool{true, false} {
		if !all && x.b.persons == 0 {
			continue
		}
		ok := make([]bool, len(x.nodes))
		var queue []int32
		for i, n := range x.nodes {
			if all && n.clean || !all && n.cleanOff {
				ok[i], queue = true, append(queue, int32(i))
			}
		}
		for ; len(queue) > 0; queue = queue[1:] {
			for _, i := range into[queue[0]] {
				e := x.edges[i]
				if (all || !e.starts) && !ok[e.from] {
					ok[e.from], queue = true, append(queue, e.from)
				}
			}
		}
		for i, n := range x.nodes {
			if !ok[i] && (all || n.off) {
				return int32(i), fmt.Sprintf("I10: no clean state can follow (all hosts return: %t)", all)
			}
		}
	}
	return 0, ""
}

// story lists the events that lead to a state.
func (x *explorer) story(at int32) string {
	var lines []string
	for i := at; i >= 0; i = x.nodes[i].from {
		lines = append([]string{fmt.Sprintf("  %s: %s\n", names[x.nodes[i].host], x.nodes[i].what)}, lines...)
	}
	return strings.Join(lines, "")
}
