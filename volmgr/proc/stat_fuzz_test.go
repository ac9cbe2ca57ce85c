package proc

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzStat checks that the name of a process cannot affect the other values that parseStat returns.
// A process chooses its own name. parseStat must also reject text that is not a stat line.
func FuzzStat(f *testing.F) {
	for _, name := range []string{
		"sleep", "", ")", "(", "a) Z 1 1 1", ") S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 1 1000 10", "a b\tc\u00a0d", "\xff", "x\n7 (y) S 1 1", "((((", "))))",
	} {
		f.Add(name, byte('S'), int32(1), int32(3), uint32(500), int64(0), line(name, 7))
	}
	f.Add("later", byte('Z'), int32(-1), int32(0), uint32(1), int64(100e9+1), []byte("7 (x) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 99999999999999999999 1"))
	f.Fuzz(func(t *testing.T, name string, state byte, session, threads int32, start uint32, shift int64, raw []byte) {
		if s, err := parseStat(raw, shift); err == nil && len(strings.Fields(string(raw))) < 20 {
			t.Errorf("%q is read as %+v", raw, s)
		}
		if state <= ' ' || state >= 0x7f || state == ')' {
			return // the kernel always writes a letter here, so this input is impossible
		}
		shown := fmt.Appendf(nil, "7 (%s) %c 1 7 %d 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 %d 0 %d 1000 10\n", name, state, session, threads, start)
		s, err := parseStat(shown, 0)
		want := Stat{State: state, Session: int(session), Threads: int(threads), Start: uint64(start)}
		if err != nil || s != want || !s.Began(uint64(start)) {
			t.Errorf("%q: %+v, %v, want %+v", shown, s, err, want)
		}
	})
}
