package shared

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store is the key-value store in which a cluster keeps its shared volumes. It has the semantics of
// etcd: every change has a revision, a transaction is atomic, and a watch delivers each change once
// and in order. Package agent/cluster implements Store with etcd. Package agent/cluster/memory
// implements it in memory for tests. Package agent/cluster/storetest checks an implementation.
//
// Keys are relative to the prefix of the cluster, such as "volumes/db". Every method except Watch
// has a deadline: that of ctx, or that of the implementation if it is earlier. All methods are safe
// for concurrent use.
type Store interface {
	// Do executes a transaction. If it returns an error that wraps ErrUnknownOutcome, the
	// transaction may or may not have been executed, and may even be executed after Do has
	// returned. DoSure handles such an error.
	Do(ctx context.Context, t Txn) (Result, error)

	// Range returns the keys of a span in ascending order. A page has at most limit keys; 0 means no
	// limit. With revision 0, Range is a linearizable read of the newest state. With another
	// revision, Range returns the state at that revision, or ErrCompacted.
	Range(ctx context.Context, s Span, limit int, revision int64) (Page, error)

	// Watch delivers all changes of the spans with a revision of at least from. The changes of one
	// span are in order. Changes of different spans are not, not even those of one transaction.
	//
	// A watch survives the loss of the connection. It then continues after the last change that it
	// delivered. The channel is closed when ctx ends or the watch fails. The last Events before a
	// failure has Err set. The error wraps ErrCompacted if the store no longer has a revision that the
	// watch needs. The caller then reads the spans with Range and watches from the next revision;
	// Follow does that. The caller reads from the channel until it is closed, or ends ctx.
	Watch(ctx context.Context, spans []Span, from int64) <-chan Events

	// Grant returns a new lease with the given time to live, in whole seconds.
	Grant(ctx context.Context, ttl time.Duration) (Lease, error)

	// Renew renews a lease once, and returns its remaining time to live. It also returns a revision
	// of the store, which may be older than the newest one. It returns ErrLeaseGone if the lease has
	// expired.
	Renew(ctx context.Context, l Lease) (left time.Duration, revision int64, err error)

	// Revoke ends a lease and deletes its keys. A lease that has expired is no error.
	Revoke(ctx context.Context, l Lease) error

	// ClusterID asks the store for its identity, which is independent of the data in it. All other
	// methods return an error if the identity has changed since the last ClusterID. For example, an
	// operator has restored etcd from a backup.
	ClusterID(ctx context.Context) (string, error)

	// Close releases all resources and ends all watches.
	Close() error
}

// Lease is the id of a lease. The zero value means no lease.
type Lease int64

// Span is a range of keys: all keys from Key up to End, without End. An empty End means the single
// key Key.
type Span struct{ Key, End string }

// Prefix returns the span of all keys that begin with a prefix. The prefix must end with "/".
func Prefix(prefix string) Span {
	return Span{Key: prefix, End: prefix[:len(prefix)-1] + "0"} // "0" follows "/" in ASCII
}

// Contains reports whether the span contains a key.
func (s Span) Contains(key string) bool {
	if s.End == "" {
		return key == s.Key
	}
	return key >= s.Key && key < s.End
}

// KV is one key with its value.
type KV struct {
	Key    string
	Value  []byte
	Create int64 // revision in which the key was created
	Mod    int64 // revision of the last change of the key
	Lease  Lease // lease to which the key belongs
}

// Compare is a condition of a transaction: the key has the given revision of its creation or of its
// last change. Revision 0 means that the key does not exist.
type Compare struct {
	Span
	Create   bool // compare the revision of the creation; otherwise that of the last change
	Revision int64
}

// Absent returns the condition that a key does not exist.
func Absent(key string) Compare { return Compare{Span: Span{Key: key}, Create: true} }

// NoneIn returns the condition that a span contains no key.
func NoneIn(s Span) Compare { return Compare{Span: s, Create: true} }

// Unchanged returns the condition that a key has not changed since it was read. If the key did not
// exist then, kv has the key's name and no revision.
func Unchanged(kv KV) Compare { return Compare{Span: Span{Key: kv.Key}, Revision: kv.Mod} }

// OpKind is the kind of an operation in a transaction.
type OpKind int

// These are the kinds of operations.
const (
	OpGet    OpKind = iota // read a span
	OpPut                  // set a key
	OpDelete               // delete the keys of a span
)

// Op is one operation of a transaction.
type Op struct {
	Kind OpKind
	Span
	Value []byte // only for OpPut
	Lease Lease  // only for OpPut
	Limit int    // only for OpGet: the maximum number of keys; 0 means no limit
}

// Get returns the operation that reads one key.
func Get(key string) Op { return Op{Span: Span{Key: key}} }

// GetSpan returns the operation that reads the keys of a span.
func GetSpan(s Span, limit int) Op { return Op{Span: s, Limit: limit} }

// Put returns the operation that sets a key.
func Put(key string, value []byte) Op { return Op{Kind: OpPut, Span: Span{Key: key}, Value: value} }

// PutLeased returns the operation that sets a key, which the store deletes when the lease ends.
func PutLeased(key string, value []byte, l Lease) Op {
	return Op{Kind: OpPut, Span: Span{Key: key}, Value: value, Lease: l}
}

// Delete returns the operation that deletes one key. A missing key is no error.
func Delete(key string) Op { return Op{Kind: OpDelete, Span: Span{Key: key}} }

// Txn is a transaction: if all conditions in If are true, the store executes Then, and otherwise
// Else. A transaction must not put the same key twice.
type Txn struct {
	If   []Compare
	Then []Op
	Else []Op
}

// Result is the answer of a transaction. Reads contains the keys that each OpGet of the executed
// branch found, in the order of these operations.
type Result struct {
	Revision int64 // revision of the store after the transaction
	Done     bool  // the conditions were true, so Then was executed
	Reads    [][]KV

	// Repeated is set by DoSure if it sent the transaction more than once. If Done is then false,
	// an earlier attempt may have been executed. The caller must find out from Reads.
	Repeated bool
}

// Page is a part of a range.
type Page struct {
	KVs      []KV
	More     bool  // the span has more keys after the last one
	Revision int64 // revision at which the page was read
}

// Events contains the changes of one or more revisions.
type Events struct {
	Changes  []Change
	Revision int64 // revision of the last change, or of a progress notification of one or more spans
	Err      error // the watch has failed
}

// Change is one change of a key. If the key was deleted, Deleted is set, and KV contains only Key
// and Mod.
type Change struct {
	KV
	Deleted bool
}

// These are the errors of a Store. Each error of a Store wraps one of them, or is the error of the
// caller's context.
var (
	// ErrUnreachable means that the store did not answer, and that it did not execute the request.
	ErrUnreachable = errors.New("the cluster's etcd is not reachable")
	// ErrUnknownOutcome means that the answer was lost. The store may have executed the request. It
	// wraps ErrUnreachable.
	ErrUnknownOutcome = fmt.Errorf("outcome unknown: %w", ErrUnreachable)
	// ErrCompacted means that the store no longer has the requested revision.
	ErrCompacted = errors.New("the revision was compacted")
	// ErrLeaseGone means that the lease does not exist (any more).
	ErrLeaseGone = errors.New("the lease has ended")
	// ErrDenied means that the store refuses the credentials or the access to the keys.
	ErrDenied = errors.New("etcd refuses access")
	// ErrFull means that the store has no space left. It accepts no writes until an administrator
	// frees space. If Do returns it, the error wraps ErrUnknownOutcome too, because etcd executes the
	// transaction that exceeds its quota. Transactions that only read and delete still succeed.
	ErrFull = errors.New("etcd is full")
	// ErrInvalid means that the store refuses the request itself, because it is too large, or puts a
	// key twice. It is an error in the agent.
	ErrInvalid = errors.New("etcd refuses the request")
	// ErrUnsupported means that the server is too old, or lacks a function that the cluster needs.
	ErrUnsupported = errors.New("this etcd is not supported")
)

// StoreError is an error of a Store with a short reason for people.
type StoreError struct {
	Kind   error // one of the errors above
	Reason string
}

func (e *StoreError) Error() string { return e.Kind.Error() + ": " + e.Reason }

// Unwrap returns the kind of the error.
func (e *StoreError) Unwrap() error { return e.Kind }

// Unusable describes in a few words why the store at the given addresses cannot be used.
func Unusable(endpoints string, err error) string {
	if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrFull) {
		return fmt.Sprintf("etcd at %s: %v", endpoints, err)
	}

	text := "etcd at " + endpoints + " does not answer"
	var e *StoreError
	if errors.As(err, &e) && e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// resendAfter is the wait before DoSure sends a transaction again.
const resendAfter = 100 * time.Millisecond

// DoSure executes a transaction, and sends it again if its answer was lost, until the store answers
// or ctx ends. A refusal, for example because the lease has ended, is an answer too. The Else branch must
// read the keys that show whether an earlier attempt succeeded. If the outcome is unknown at the end, the
// error wraps ErrUnknownOutcome.
func DoSure(ctx context.Context, s Store, t Txn) (Result, error) {
	for sent := 1; ; sent++ {
		r, err := s.Do(ctx, t)
		if err == nil {
			r.Repeated = sent > 1
			return r, nil
		}

		again := errors.Is(err, ErrUnknownOutcome) || sent > 1 && errors.Is(err, ErrUnreachable)
		if sent > 1 && !errors.Is(err, ErrUnknownOutcome) {
			err = fmt.Errorf("%w (%w)", err, ErrUnknownOutcome) // an earlier attempt may have been executed
		}
		if !again || errors.Is(err, ErrFull) {
			return r, err // a store that is full does not change that by itself
		}

		select {
		case <-ctx.Done():
			return r, err
		case <-time.After(resendAfter):
		}
	}
}
