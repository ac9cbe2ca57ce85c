package statedb_test

import (
	"runtime"
	"testing"
)

// limited begins to measure the memory that a test allocates. The returned function fails the test
// if the test allocated too much memory for a file of the given size. The limit is a fixed amount
// for bbolt and the check of pages, plus 400 bytes for each byte of the file. The factor is large,
// because the three bytes "{}," can encode a whole claim.
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
