package statedb_test

import (
	"runtime"
	"testing"
)

// limited measures what a test allocates. The function that it returns fails the test
// if that is more than reading a file of some bytes may take: a fixed part for bbolt and
// the walk, and 400 bytes for each byte, since "{}," may stand for a claim.
func limited(t *testing.T) (within func(read int)) {
	t.Helper()
	const fixed, each = 64 << 20, 400
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	return func(read int) {
		t.Helper()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(fixed+each*read) {
			t.Errorf("%d bytes of memory for a file of %d", took, read)
		}
	}
}
