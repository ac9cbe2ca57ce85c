package statedb_test

import (
	"runtime"
	"testing"
)

// limited measures the memory that a test allocates. The returned function fails the test if that
// is more than reading a file of some size may need. The limit is a fixed part for bbolt and the
// walk, plus 400 bytes for each byte of the file, because the three bytes "{}," can encode a claim.
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
