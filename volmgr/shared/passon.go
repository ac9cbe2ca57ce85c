package shared

import "slices"

// NextHookHost returns the host that asks its fence hooks next to switch a lost host off. The hosts with hooks take
// turns, because a hook may fail on one host and succeed on another, for example if only one of them reaches the BMC.
// The elected host has the first turn, and then asks itself again after the last of the others. The argument last is
// the host that had the last turn, or empty. The result is empty if no host has hooks.
func NextHookHost(elected string, withHooks []string, last string) string {
	turns := slices.Sorted(slices.Values(withHooks))
	turns = slices.Compact(turns)
	if i := slices.Index(turns, elected); i > 0 {
		turns = slices.Insert(slices.Delete(turns, i, i+1), 0, elected)
	}
	if len(turns) == 0 {
		return ""
	}
	return turns[(slices.Index(turns, last)+1)%len(turns)]
}
