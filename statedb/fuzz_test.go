package statedb_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// FuzzLog reads logs with random content. All lines before the first invalid one must be valid. A
// log of only these lines must contain the same records, and it must be possible to append a line.
// The memory use must be bounded.
func FuzzLog(f *testing.F) {
	line := func(text string) []byte {
		return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE([]byte(text)), text)
	}
	r := volume.Record{Volume: volume.Volume{ID: "data", PluginID: "p"}, Generation: 7}
	record, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	good := fmt.Sprintf(`{"record":%s,"claims":[{"alloc":"a","seq":1},{"alloc":"b","seq":2}]}`, record)
	for _, text := range []string{good, "{}", "null", "[]", `{"claims":[{},{}]}`, `{"record":{"volume":{"id":1}}}`, "{\"record\":{}}\r", ""} {
		f.Add(line(text), text)
		f.Add(append(line(good), line(text)...), good)
		f.Add(append(line(text), line(text)[:9]...), text)
	}
	f.Add([]byte("00000000 \n\n +0 x\n"), "x")
	f.Add(append(line(good), make([]byte, 4096)...), good)
	f.Fuzz(func(t *testing.T, raw []byte, text string) {
		if len(raw) > 1<<20 {
			return
		}
		within := limited(t)
		records, size := statedb.ReadLog(raw)
		within(len(raw))
		if size < 0 || size > int64(len(raw)) || len(records) != bytes.Count(raw[:size], []byte{'\n'}) {
			t.Fatalf("%d records in %d of %d bytes", len(records), size, len(raw))
		}
		for _, r := range records {
			for alloc, c := range r.Claims {
				if c.Alloc != alloc {
					t.Errorf("the claim of %q is under %q", c.Alloc, alloc)
				}
			}
		}
		if again, n := statedb.ReadLog(raw[:size]); n != size || !reflect.DeepEqual(again, records) {
			t.Errorf("%d bytes of %d are %d records, not %d", n, size, len(again), len(records))
		}
		more, n := statedb.ReadLog(append(bytes.Clone(raw[:size]), line(good)...))
		if len(more) != len(records)+1 || n != size+int64(len(line(good))) || more[len(records)].Generation != 7 || len(more[len(records)].Claims) != 2 {
			t.Errorf("a line after %d records makes %d", len(records), len(more))
		}
		_, _ = statedb.Record([]byte(text)) // any result is correct, but the call must return
		_, _ = statedb.Claim([]byte(text))
	})
}
