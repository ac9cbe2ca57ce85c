package cluster

import (
	"context"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/volagent/volagent/volmgr/shared"
)

// Do implements shared.Store. It sends the transaction at most once, except after an answer which
// says that it was not executed.
func (s *Store) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	if s.o.Tap != nil {
		s.o.Tap(Point{Txn: t})
		defer s.o.Tap(Point{After: true, Txn: t})
	}
	request := s.keys.request(t)
	var r *pb.TxnResponse
	err := s.attempt(ctx, s.o.Timeout, func(ctx context.Context) (err error) {
		r, err = s.kv.Txn(ctx, request, callOptions()...)
		return err
	})
	if err == nil {
		err = s.answered(r.GetHeader())
	}
	if err != nil {
		return shared.Result{}, fmt.Errorf("cannot execute the transaction: %w", err)
	}

	result := shared.Result{Revision: r.GetHeader().GetRevision(), Done: r.GetSucceeded()}
	ops := t.Then
	if !result.Done {
		ops = t.Else
	}
	for i, op := range ops {
		if op.Kind == shared.OpGet {
			result.Reads = append(result.Reads, s.keys.kvs(r.GetResponses()[i].GetResponseRange().GetKvs()))
		}
	}
	return result, nil
}

// Range implements shared.Store.
func (s *Store) Range(ctx context.Context, span shared.Span, limit int, revision int64) (shared.Page, error) {
	request := s.keys.rangeRequest(span, limit)
	request.Revision = revision
	var r *pb.RangeResponse
	err := s.repeat(ctx, func(ctx context.Context) (err error) {
		r, err = s.kv.Range(ctx, request, callOptions()...)
		return err
	})
	if err == nil {
		err = s.answered(r.GetHeader())
	}
	if err != nil {
		return shared.Page{}, fmt.Errorf("cannot read %s: %w", span.Key, err)
	}
	if revision == 0 {
		revision = r.GetHeader().GetRevision()
	}
	return shared.Page{KVs: s.keys.kvs(r.GetKvs()), More: r.GetMore(), Revision: revision}, nil
}

// codec converts between the types in shared and etcd's messages. It is the prefix of all keys, such
// as "volagent/v1/", which it adds and removes.
type codec string

// request returns a transaction as etcd's message.
func (c codec) request(t shared.Txn) *pb.TxnRequest {
	r := &pb.TxnRequest{Success: c.ops(t.Then), Failure: c.ops(t.Else)}
	for _, condition := range t.If {
		key, end := c.span(condition.Span)
		compare := &pb.Compare{Key: key, RangeEnd: end, Result: pb.Compare_EQUAL}
		if condition.Create {
			compare.Target, compare.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: condition.Revision}
		} else {
			compare.Target, compare.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: condition.Revision}
		}
		r.Compare = append(r.Compare, compare)
	}
	if len(r.Success)+len(r.Failure) == 0 {
		// etcd takes a transaction without operations for a serializable read (IsTxnSerializable): a
		// member that lags behind answers with its old state. A read makes the answer linearizable.
		c.addRead(r)
	}
	return r
}

// addRead adds a read of one key to both branches of a transaction. The key is one to which the
// transaction needs access anyway.
func (c codec) addRead(r *pb.TxnRequest) {
	key := []byte(string(c) + "meta")
	if len(r.Compare) > 0 {
		key = r.Compare[0].Key
	}
	read := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key, CountOnly: true}}}
	r.Success, r.Failure = []*pb.RequestOp{read}, []*pb.RequestOp{read}
}

// ops returns the operations of a branch as etcd's messages.
func (c codec) ops(ops []shared.Op) (list []*pb.RequestOp) {
	for _, op := range ops {
		key, end := c.span(op.Span)
		r := &pb.RequestOp{}
		switch op.Kind {
		case shared.OpGet:
			r.Request = &pb.RequestOp_RequestRange{RequestRange: c.rangeRequest(op.Span, op.Limit)}
		case shared.OpPut:
			r.Request = &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: op.Value, Lease: int64(op.Lease)}}
		case shared.OpDelete:
			r.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key, RangeEnd: end}}
		}
		list = append(list, r)
	}
	return list
}

// rangeRequest returns the message that reads a span.
func (c codec) rangeRequest(span shared.Span, limit int) *pb.RangeRequest {
	key, end := c.span(span)
	return &pb.RangeRequest{Key: key, RangeEnd: end, Limit: int64(limit)}
}

// span returns the keys of a span in etcd. Both ends have the prefix, so that no span contains keys
// beside it.
func (c codec) span(span shared.Span) (key, end []byte) {
	key = []byte(string(c) + span.Key)
	if span.End != "" {
		end = []byte(string(c) + span.End)
	}
	return key, end
}

// kvs returns etcd's keys without the prefix.
func (c codec) kvs(list []*mvccpb.KeyValue) []shared.KV {
	kvs := make([]shared.KV, 0, len(list))
	for _, kv := range list {
		kvs = append(kvs, c.kvOf(kv))
	}
	return kvs
}

// kvOf returns one of etcd's keys without the prefix.
func (c codec) kvOf(kv *mvccpb.KeyValue) shared.KV {
	return shared.KV{
		Key:    strings.TrimPrefix(string(kv.GetKey()), string(c)),
		Value:  kv.GetValue(),
		Create: kv.GetCreateRevision(),
		Mod:    kv.GetModRevision(),
		Lease:  shared.Lease(kv.GetLease()),
	}
}
