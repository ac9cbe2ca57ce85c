package explore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
)

// store is a key-value store with the revisions and the transactions of etcd. It is a value: a
// transaction returns another store, and the earlier one remains as it was.
type store struct {
	kvs []shared.KV // in ascending order of the keys; never changed in place
	rev int64
	tab *tables
}

// tables remember the decoded values, because the states of one search repeat most values.
type tables struct {
	values  map[string][]byte
	decoded map[place]any
	parsed  map[reading]any

	without    condition
	conditions map[condition]bool // of all transactions
}

// place identifies a key with its value and its revisions.
type place struct {
	value       *byte
	create, mod int64
}

// reading identifies the result of a read for a host.
type reading struct {
	kind string
	host int
	more string
	kvs  [8]place
}

func newTables() *tables {
	return &tables{values: map[string][]byte{}, decoded: map[place]any{}, parsed: map[reading]any{}, conditions: map[condition]bool{}}
}

// one returns the same bytes for equal values.
func (t *tables) one(value []byte) []byte {
	if is, ok := t.values[string(value)]; ok {
		return is
	}
	t.values[string(value)] = value
	return value
}

// find returns the place of a key, and whether the store has the key.
func (s store) find(key string) (int, bool) {
	return slices.BinarySearchFunc(s.kvs, key, func(kv shared.KV, key string) int { return strings.Compare(kv.Key, key) })
}

// has reports whether the store has a key.
func (s store) has(key string) bool {
	_, ok := s.find(key)
	return ok
}

// read returns the keys of a span in ascending order, at most limit of them. 0 means no limit.
func (s store) read(span shared.Span, limit int) []shared.KV {
	from, ok := s.find(span.Key)
	if span.End == "" {
		if !ok {
			return nil
		}
		return s.kvs[from : from+1]
	}

	to, _ := s.find(span.End)
	if limit > 0 {
		to = min(to, from+limit)
	}
	return s.kvs[from:to]
}

// meets reports whether the store fulfils a condition of a transaction.
func (s store) meets(c shared.Compare) bool {
	kvs := s.read(c.Span, 0)
	if len(kvs) == 0 {
		return c.End != "" || c.Revision == 0
	}
	return !slices.ContainsFunc(kvs, func(kv shared.KV) bool {
		is := kv.Mod
		if c.Create {
			is = kv.Create
		}
		return is != c.Revision
	})
}

// do executes a transaction. The result done is false if a condition was false. The model reads the
// keys again after that, so the Else branch has no effect here.
func (s store) do(t shared.Txn) (now store, done bool) {
	for _, c := range t.If {
		if !s.meets(c) {
			return s, false
		}
	}

	now = store{kvs: slices.Clone(s.kvs), rev: s.rev, tab: s.tab}
	for _, op := range t.Then {
		i, ok := now.find(op.Key)
		switch {
		case op.Kind == shared.OpPut && ok:
			now.kvs[i].Value, now.kvs[i].Mod, now.kvs[i].Lease = s.tab.one(op.Value), s.rev+1, op.Lease
		case op.Kind == shared.OpPut:
			kv := shared.KV{Key: op.Key, Value: s.tab.one(op.Value), Create: s.rev + 1, Mod: s.rev + 1, Lease: op.Lease}
			now.kvs = slices.Insert(now.kvs, i, kv)
		case op.Kind == shared.OpDelete && ok:
			now.kvs = slices.Delete(now.kvs, i, i+1)
		default:
			continue
		}
		now.rev = s.rev + 1
	}
	return now, true
}

// reads returns the results of read operations.
func (s store) reads(ops []shared.Op) shared.Result {
	res := shared.Result{Revision: s.rev, Done: true}
	for _, op := range ops {
		res.Reads = append(res.Reads, s.read(op.Span, op.Limit))
	}
	return res
}

// delete returns the store without a key, as after the end of a lease.
func (s store) delete(key string) store {
	now, _ := s.do(shared.Txn{Then: []shared.Op{shared.Delete(key)}})
	return now
}

// get returns the decoded value of a key.
func get[T any](s store, key string) shared.Entry[T] {
	i, ok := s.find(key)
	if !ok {
		return shared.Entry[T]{KV: shared.KV{Key: key}}
	}
	at := placeOf(s.kvs[i])
	if is, ok := s.tab.decoded[at].(shared.Entry[T]); ok && is.Key == key {
		return is
	}
	e := must(shared.Decode[T](s.kvs[i]))
	s.tab.decoded[at] = e
	return e
}

// must returns a value whose error the model excludes.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// placeOf identifies a key with its value.
func placeOf(kv shared.KV) place { return place{&kv.Value[0], kv.Create, kv.Mod} }

// parsed reads some keys for a host and decodes them. The text more contains all further arguments of parse.
func parsed[T any](s *state, kind string, x int, more string, ops []shared.Op, parse func(shared.Result) (T, error)) T {
	at := reading{kind: kind, host: x, more: more}
	for i, op := range ops {
		if op.End != "" {
			continue // the users of the volume, of which the model has none
		}
		if j, ok := s.store.find(op.Key); ok {
			at.kvs[i] = placeOf(s.store.kvs[j])
		}
	}
	if is, ok := s.store.tab.parsed[at]; ok {
		return is.(T)
	}
	is := must(parse(s.store.reads(ops)))
	s.store.tab.parsed[at] = is
	return is
}

// situation reads the keys of the volume and one host.
func (s *state) situation(x int) shared.Situation {
	return parsed(s, "situation", x, "", shared.Reads(names[x], id), func(res shared.Result) (shared.Situation, error) {
		return shared.ParseSituation(names[x], id, res)
	})
}

// orphan reads the keys about a call.
func (s *state) orphan(x int, one shared.Call) shared.Orphan {
	more := fmt.Sprint(one.Executor, one.Target, one.Call, one.Operation, one.Incarnation)
	return parsed(s, "orphan", x, more, shared.OrphanReads(names[x], id, one), func(res shared.Result) (shared.Orphan, error) {
		return shared.ParseOrphan(names[x], id, one, res)
	})
}

// arrival reads the keys that decide about a registration.
func (s *state) arrival(x int) shared.Arrival {
	return parsed(s, "arrival", x, "", shared.ArrivalReads(names[x]), func(res shared.Result) (shared.Arrival, error) {
		return shared.ParseArrival(names[x], res)
	})
}

// fenceOf reads the keys that decide about the fencing of the other host.
func (s *state) fenceOf(x int) shared.Fence {
	n, writer := s.node(1-x).Value, ""
	if n.Fencing != nil {
		writer = n.Fencing.By
	}
	more := fmt.Sprint(writer, n.Incarnation)
	return parsed(s, "fence", x, more, shared.FenceReads(names[x], names[1-x], n.Incarnation, writer), func(res shared.Result) (shared.Fence, error) {
		f, complete, err := shared.ParseFence(names[x], names[1-x], n.Incarnation, writer, res.Reads)
		if !complete {
			err = errors.Join(err, errors.New("the keys of a fencing are not complete"))
		}
		return f, err
	})
}
