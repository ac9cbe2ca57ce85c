package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/shared"
)

// holds reports whether a condition is true in a transaction.
func (s *suite) holds(c shared.Compare) bool {
	s.Helper()
	return s.do(shared.Txn{If: []shared.Compare{c}}).Done
}

// checkCompare checks the conditions about one key.
func checkCompare(s *suite) {
	one := shared.Span{Key: "k"}
	equal(s, "absent before", s.holds(shared.Absent("k")), true)
	equal(s, "unchanged before", s.holds(shared.Unchanged(shared.KV{Key: "k"})), true)
	created := s.put("k", "1")
	changed := s.put("k", "2")
	for _, c := range []struct {
		compare shared.Compare
		want    bool
	}{
		{shared.Absent("k"), false},
		{shared.Unchanged(shared.KV{Key: "k"}), false},
		{shared.Compare{Span: one, Create: true, Revision: created}, true},
		{shared.Compare{Span: one, Create: true, Revision: changed}, false},
		{shared.Compare{Span: one, Revision: changed}, true},
		{shared.Compare{Span: one, Revision: created}, false},
		{shared.Compare{Span: one, Revision: changed + 1}, false},
	} {
		equal(s, fmt.Sprintf("%+v", c.compare), s.holds(c.compare), c.want)
	}
	kv, _ := s.get("k")
	equal(s, "unchanged since it was read", s.holds(shared.Unchanged(kv)), true)
	equal(s, "create revision", kv.Create, created)
	equal(s, "mod revision", kv.Mod, changed)

	s.remove("k")
	equal(s, "absent after", s.holds(shared.Absent("k")), true)
	again := s.put("k", "3")
	equal(s, "the old creation", s.holds(shared.Compare{Span: one, Create: true, Revision: created}), false)
	equal(s, "the new creation", s.holds(shared.Compare{Span: one, Create: true, Revision: again}), true)
}

// checkCompareSpan checks the conditions about spans.
func checkCompareSpan(s *suite) {
	users := shared.Prefix("users/")
	equal(s, "none before", s.holds(shared.NoneIn(users)), true)
	s.put("users", "beside")
	s.put("users0", "beside")
	equal(s, "none beside", s.holds(shared.NoneIn(users)), true)
	created := s.do(shared.Txn{Then: []shared.Op{shared.Put("users/a", nil), shared.Put("users/b", nil)}}).Revision
	equal(s, "two", s.holds(shared.NoneIn(users)), false)
	equal(s, "both of one revision", s.holds(shared.Compare{Span: users, Revision: created}), true)
	changed := s.put("users/b", "1")
	equal(s, "one changed", s.holds(shared.Compare{Span: users, Revision: created}), false)
	equal(s, "the other not", s.holds(shared.Compare{Span: users, Revision: changed}), false)
	equal(s, "both created", s.holds(shared.Compare{Span: users, Create: true, Revision: created}), true)
	s.do(shared.Txn{Then: []shared.Op{{Kind: shared.OpDelete, Span: users}}})
	equal(s, "none after", s.holds(shared.NoneIn(users)), true)
	equal(s, "the keys beside", text(s.read(shared.Span{Key: "users", End: "users1"}, 0)), "users=beside users0=beside")
}

// checkBranches checks that a transaction executes one branch, as a whole, with one revision.
func checkBranches(s *suite) {
	base := s.put("k", "1")
	conditions := func(more ...shared.Compare) []shared.Compare {
		return append([]shared.Compare{shared.Unchanged(shared.KV{Key: "k", Mod: base})}, more...)
	}
	branches := shared.Txn{
		Then: []shared.Op{shared.Put("then", nil), shared.Delete("k")},
		Else: []shared.Op{shared.Get("k"), shared.Get("missing"), shared.Put("else", nil)},
	}

	branches.If = conditions(shared.Absent("k"))
	r := s.do(branches)
	equal(s, "done with one false condition", r.Done, false)
	equal(s, "revision", r.Revision, base+1)
	equal(s, "reads of Else", fmt.Sprint(len(r.Reads), " ", text(r.Reads[0]), " ", text(r.Reads[1])), "2 k=1 ")
	equal(s, "keys", text(s.read(shared.Span{Key: "a", End: "z"}, 0)), "else= k=1")

	branches.If = conditions(shared.Absent("then"))
	r = s.do(branches)
	equal(s, "done", r.Done, true)
	equal(s, "revision", r.Revision, base+2)
	equal(s, "reads of Then", len(r.Reads), 0)
	equal(s, "keys", text(s.read(shared.Span{Key: "a", End: "z"}, 0)), "else= then=")
	kv, _ := s.get("then")
	equal(s, "mod revision", kv.Mod, r.Revision)

	r = s.do(shared.Txn{Then: []shared.Op{shared.Get("then"), shared.Delete("missing")}})
	equal(s, "revision of a transaction without changes", r.Revision, base+2)
}

// checkReads checks the order, the limit and the time of reads in a transaction.
func checkReads(s *suite) {
	span := shared.Prefix("r/")
	s.do(shared.Txn{Then: []shared.Op{shared.Put("r/b", []byte("2")), shared.Put("r/a", []byte("1")), shared.Put("r/c", []byte("3"))}})
	r := s.do(shared.Txn{Then: []shared.Op{
		shared.GetSpan(span, 0), shared.GetSpan(span, 2), shared.Put("r/d", []byte("4")), shared.GetSpan(span, 0),
		{Kind: shared.OpDelete, Span: shared.Span{Key: "r/a", End: "r/c"}}, shared.GetSpan(span, 0),
	}})
	var got string
	for _, kvs := range r.Reads {
		got += text(kvs) + "; "
	}
	equal(s, "reads", got, "r/a=1 r/b=2 r/c=3; r/a=1 r/b=2; r/a=1 r/b=2 r/c=3 r/d=4; r/c=3 r/d=4; ")
}

// checkInvalid checks that a transaction that changes a key twice is refused as a whole.
func checkInvalid(s *suite) {
	for name, ops := range map[string][]shared.Op{
		"put twice":      {shared.Put("a", nil), shared.Put("k", nil), shared.Put("k", nil)},
		"put and delete": {shared.Put("a", nil), {Kind: shared.OpDelete, Span: shared.Prefix("p/")}, shared.Put("p/k", nil)},
	} {
		_, err := s.s.Do(s.Context(), shared.Txn{Then: ops})
		s.is(err, shared.ErrInvalid)
		if errors.Is(err, shared.ErrUnknownOutcome) {
			s.Errorf("%s: the outcome is unknown: %v", name, err)
		}
		if _, ok := s.get("a"); ok {
			s.Errorf("%s: a part was executed", name)
		}
	}
}

// checkLarge checks values of several hundred kilobytes.
func checkLarge(s *suite) {
	value := bytes.Repeat([]byte("0123456789abcdef"), 1<<16-1<<12)
	r := s.do(shared.Txn{Then: []shared.Op{shared.Put("big", value), shared.Get("big")}})
	if !bytes.Equal(r.Reads[0][0].Value, value) {
		s.Error("the transaction reads another value")
	}
	ch := s.s.Watch(s.Context(), []shared.Span{{Key: "big"}}, r.Revision)
	if got := s.collect(ch, 1)[0]; !bytes.Equal(got.Value, value) || got.Mod != r.Revision {
		s.Error("the watch delivers another value")
	}
	// The agent may change the values that it has read.
	r.Reads[0][0].Value[0] = 'x'
	if kv, _ := s.get("big"); !bytes.Equal(kv.Value, value) {
		s.Error("a change of the value that was read changes the store")
	}
}
