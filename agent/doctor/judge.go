package doctor

import (
	"cmp"
	"fmt"
	"slices"
)

// rules lists all rules. Each rule reads the collected data and adds findings.
var rules = []func(p Picture, f *findings){
	database, disk, looked, halted, system, unmet,
	mounts, unexplained, leftovers, notes,
	volumes, owners, deregistered, tests,
	plugins, capabilities, deadlock, missing,
	devices, orphans, entries, guards, runtimes,
	membership, holds, calls, conflicts,
}

// Judge applies the rules to the collected data. It sorts the findings by severity, with the most
// severe first, and then by subject. No two findings have the same id.
func Judge(p Picture) []Finding {
	f := &findings{}
	for _, rule := range rules {
		rule(p, f)
	}

	rank := map[Severity]int{Problem: 0, Warning: 1, Note: 2}
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.ID, b.ID))
	})
	seen := map[string]int{}
	for i := range f.all {
		id := f.all[i].ID
		if seen[id]++; seen[id] > 1 {
			f.all[i].ID = fmt.Sprintf("%s#%d", id, seen[id])
		}
	}

	return f.all
}
