package explore_test

import (
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

var conditions = flag.Bool("explore.conditions", false, "let TestConditions leave out each condition of each transaction (minutes)")

// condition is one condition of one kind of transaction.
type condition struct {
	txn string
	key string // the whole key of a host, and the first component of any other key
}

// conditionsOf records the conditions of a transaction, and returns them without the one to leave out.
func (t *tables) conditionsOf(txn string, all []shared.Compare) []shared.Compare {
	of := func(c shared.Compare) condition {
		kind, _, _ := strings.Cut(c.Key, "/")
		if kind == "nodes" || kind == "live" {
			kind = c.Key
		}
		return condition{txn, kind}
	}
	for _, c := range all {
		t.conditions[of(c)] = true
	}
	if t.without.txn == "" {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(c shared.Compare) bool { return of(c) == t.without })
}

// TestConditions leaves out each condition of each transaction, and logs which failure the exploration then
// finds. A condition without a failure is redundant, or the budget is too small.
func TestConditions(t *testing.T) {
	if !*conditions {
		t.Skip("needs the flag -explore.conditions")
	}
	budgets := []budget{{mounted: true, claims: 1, leases: 1, races: 1}, {claims: 2, leases: 1, races: 1}}
	explore := func(v variant, without condition) (all map[condition]bool, bad string) {
		all = map[condition]bool{}
		for _, b := range budgets {
			x := &explorer{v: v, b: b, seen: map[key]int32{}, until: time.Now().Add(time.Minute), without: without}
			if bad = x.run(); bad != "" {
				break
			}
			maps.Copy(all, x.tab.conditions)
		}
		return all, bad
	}

	all := map[condition]bool{}
	for _, v := range variants[:4] {
		found, bad := explore(v, condition{})
		if bad != "" {
			t.Fatal(bad)
		}
		maps.Copy(all, found)
	}
	order := slices.SortedFunc(maps.Keys(all), func(a, b condition) int { return strings.Compare(a.txn+a.key, b.txn+b.key) })
	for _, c := range order {
		seen := "-"
		for _, v := range variants[:4] {
			if _, bad := explore(v, c); bad != "" {
				bad, _, _ = strings.Cut(bad, "\n")
				seen = v.name + ": " + bad
				break
			}
		}
		t.Logf("%s without %s: %s", c.txn, c.key, seen)
	}
}
