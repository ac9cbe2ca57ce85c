package storetest

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
)

// fill sets n keys with the prefix "p/", and returns the revision.
func (s *suite) fill(n int) int64 {
	s.Helper()
	var ops []shared.Op
	for i := range n {
		ops = append(ops, shared.Put(fmt.Sprintf("p/%03d", i), []byte("old")))
	}
	return s.do(shared.Txn{Then: ops}).Revision
}

// checkPages checks that pages at one revision show one state, also if keys change in the meantime.
func checkPages(s *suite) {
	revision := s.fill(10)
	span := shared.Prefix("p/")
	first, err := s.s.Range(s.Context(), span, 4, 0)
	if err != nil {
		s.Fatal(err)
	}
	equal(s, "revision of the first page", first.Revision >= revision, true)
	equal(s, "first page", fmt.Sprint(len(first.KVs), " ", first.More, " ", first.KVs[3].Key), "4 true p/003")

	s.remove("p/004")
	s.put("p/005", "new")
	s.put("p/0055", "new")
	span.Key = first.KVs[3].Key + "\x00"
	second, err := s.s.Range(s.Context(), span, 6, first.Revision)
	if err != nil {
		s.Fatal(err)
	}
	want := "p/004=old p/005=old p/006=old p/007=old p/008=old p/009=old"
	equal(s, "second page", text(second.KVs), want)
	equal(s, "more", second.More, false)
	equal(s, "revision of the second page", second.Revision, first.Revision)
}

// checkHistory checks reads of old revisions, also of compacted ones and of revisions that do not exist.
func checkHistory(s *suite) {
	one := shared.Span{Key: "k"}
	r1 := s.put("k", "1")
	r2 := s.put("k", "2")
	r3 := s.remove("k")
	r4 := s.put("k", "4")
	for revision, want := range map[int64]string{r1: "k=1", r2: "k=2", r3: "", r4: "k=4", 0: "k=4"} {
		equal(s, fmt.Sprint("state at ", revision-r1), text(s.read(one, revision)), want)
	}
	s.backend.Compact(r2)
	_, err := s.s.Range(s.Context(), one, 0, r1)
	s.is(err, shared.ErrCompacted)
	equal(s, "state at the compacted revision", text(s.read(one, r2)), "k=2")
	equal(s, "state at the deletion", text(s.read(one, r3)), "")
	_, err = s.s.Range(s.Context(), one, 0, r4+1000)
	s.is(err, shared.ErrCompacted)
}

// checkRangeAll checks that RangeAll returns one consistent state, also if a compaction interrupts it.
func checkRangeAll(s *suite) {
	s.fill(10)
	var parts, keys []string
	interrupted := false
	for part, err := range shared.RangeAll(s.Context(), s.s, shared.Prefix("p/"), 3) {
		if err != nil {
			s.Fatal(err)
		}
		if part.First {
			keys = nil
			parts = append(parts, "first")
		}
		parts = append(parts, fmt.Sprint(len(part.KVs)))
		for _, kv := range part.KVs {
			keys = append(keys, kv.Key+"="+string(kv.Value))
		}
		if !interrupted && len(keys) == 6 {
			interrupted = true
			s.put("p/000", "new")
			s.backend.Compact(s.remove("p/009"))
		}
	}
	equal(s, "parts", strings.Join(parts, " "), "first 3 3 first 3 3 3")
	equal(s, "keys", fmt.Sprint(len(keys), " ", keys[0], " ", keys[8]), "9 p/000=new p/008=old")
}
