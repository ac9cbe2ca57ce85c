package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent/etcd/reason"
	"github.com/volagent/volagent/volmgr/shared"
)

// errToken means that the server refuses the token of the request. It does so before it executes the
// request, or, if the users changed in the meantime, instead of executing it.
var errToken = fmt.Errorf("the login has expired: %w", shared.ErrDenied)

// refusals are the answers of etcd which say that it has not executed the request. It sends them
// before it proposes the request to its log, or instead of applying it.
var refusals = []struct{ answer, is error }{
	{rpctypes.ErrInvalidAuthToken, errToken},
	{rpctypes.ErrAuthOldRevision, errToken},
	{rpctypes.ErrUserEmpty, errToken},
	{rpctypes.ErrAuthFailed, shared.ErrDenied},
	{rpctypes.ErrPermissionDenied, shared.ErrDenied},
	{rpctypes.ErrUserNotFound, shared.ErrDenied},
	{rpctypes.ErrRoleNotGranted, shared.ErrDenied},
	{rpctypes.ErrLeaseNotFound, shared.ErrLeaseGone},
	{rpctypes.ErrCompacted, shared.ErrCompacted},
	// A store that went back to an older revision lacks a newer one just as well.
	{rpctypes.ErrFutureRev, shared.ErrCompacted},
	{rpctypes.ErrNotCapable, shared.ErrUnsupported},
	{rpctypes.ErrTooManyOps, shared.ErrInvalid},
	{rpctypes.ErrDuplicateKey, shared.ErrInvalid},
	{rpctypes.ErrEmptyKey, shared.ErrInvalid},
	{rpctypes.ErrRequestTooLarge, shared.ErrInvalid},
	{rpctypes.ErrLeaseTTLTooLarge, shared.ErrInvalid},
	{rpctypes.ErrTooManyRequests, shared.ErrUnreachable},
	{rpctypes.ErrGRPCNotSupportedForLearner, shared.ErrUnreachable},
	{rpctypes.ErrNoLeader, shared.ErrUnreachable},
}

// classify returns the error of a call that may change the store as one of the errors in shared. With
// sent, a part of the request may have reached the network.
//
// classify is careful: an error means ErrUnreachable, which is "not executed", only if nothing was
// sent, or if etcd itself says so with one of the refusals. Every other failure may hide an executed
// request, so it means ErrUnknownOutcome. Examples are a broken connection, a deadline and an answer
// of a proxy. etcd's own timeouts and "server stopped" belong to them, because etcd also sends them
// after the proposal.
//
// "database space exceeded" is a special case. The transaction that exceeds the quota is executed,
// and answered with this error all the same (quotaApplierV3.Txn in etcd). Later ones are refused. So
// the error wraps both ErrFull and ErrUnknownOutcome.
func classify(err error, sent bool) error {
	if err == nil {
		return nil
	}
	etcd := rpctypes.Error(err)
	if errors.Is(etcd, rpctypes.ErrNoSpace) {
		return fmt.Errorf("%w (%w)", shared.ErrFull, shared.ErrUnknownOutcome)
	}
	for _, r := range refusals {
		if errors.Is(etcd, r.answer) || rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(r.answer) {
			return fmt.Errorf("%w: %s", r.is, rpctypes.ErrorDesc(err))
		}
	}

	text := rpctypes.ErrorDesc(err)
	switch code := status.Code(err); {
	case code == codes.Unimplemented:
		return fmt.Errorf("%w: %s", shared.ErrUnsupported, text)
	case code == codes.PermissionDenied, code == codes.Unauthenticated:
		return fmt.Errorf("%w: %s", shared.ErrDenied, text)
	case code == codes.ResourceExhausted && strings.Contains(text, "larger than max"):
		return fmt.Errorf("%w: %s", shared.ErrInvalid, text) // gRPC's limit, checked before etcd sees the request
	case !sent && refusedByTLS(text):
		return fmt.Errorf("%w: %s", shared.ErrDenied, reason.Of(text))
	case !sent:
		return &shared.StoreError{Kind: shared.ErrUnreachable, Reason: reason.Of(text)}
	}
	return &shared.StoreError{Kind: shared.ErrUnknownOutcome, Reason: reason.Of(text)}
}

// refusedByTLS reports whether the text of a connection error comes from TLS. gRPC gives only the
// text of the last connection error.
func refusedByTLS(text string) bool {
	for _, part := range []string{"tls: ", "x509: ", "authentication handshake failed"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// notExecuted returns the error of a call that changes nothing, so that its outcome does not matter.
func notExecuted(err error) error {
	if !errors.Is(err, shared.ErrUnknownOutcome) {
		return err
	}
	if errors.Is(err, shared.ErrFull) {
		return shared.ErrFull
	}

	var failed *shared.StoreError
	if errors.As(err, &failed) && errors.Is(failed.Kind, shared.ErrUnknownOutcome) {
		return &shared.StoreError{Kind: shared.ErrUnreachable, Reason: failed.Reason}
	}
	return fmt.Errorf("%w%s", shared.ErrUnreachable, strings.TrimPrefix(err.Error(), shared.ErrUnknownOutcome.Error()))
}

// withContext adds the error of the caller's context. A call that the caller cancels before anything
// was sent says nothing about etcd.
func withContext(ctx context.Context, err error) error {
	ended := ctx.Err()
	switch {
	case err == nil || ended == nil:
		return err
	case errors.Is(ended, context.Canceled) && !errors.Is(err, shared.ErrUnknownOutcome):
		return ended
	}
	return fmt.Errorf("%w (%w)", err, ended)
}

// oldest is the oldest supported version of etcd. Older ones lose the deletion of a key if its
// revision is compacted and a watch begins there (etcd issues 18089 and 19179).
var oldest = [3]int{3, 5, 18}

// checkVersion returns an error if a version of etcd, such as "3.5.18", is too old.
func checkVersion(version string) error {
	numbers, _, _ := strings.Cut(version, "-") // without "-rc.0"
	fields := strings.Split(numbers, ".")
	for i, want := range oldest {
		n, err := 0, error(nil)
		if i < len(fields) {
			n, err = strconv.Atoi(fields[i])
		}
		if err != nil {
			return fmt.Errorf("%w: its version %q cannot be read", shared.ErrUnsupported, version)
		}
		if n != want {
			if n > want {
				return nil
			}
			return fmt.Errorf("%w: its version is %s, and at least %d.%d.%d is needed", shared.ErrUnsupported, version, oldest[0], oldest[1], oldest[2])
		}
	}
	return nil
}

// sentMark records whether a part of a request may have reached the network.
type sentMark struct{ atomic.Bool }

// sentKey is the key of the context under which sentHandler finds the mark.
type sentKey struct{}

// in returns a context that carries the mark.
func (m *sentMark) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, sentKey{}, m)
}

// sentHandler sets the mark of a call. gRPC calls it when it has chosen a connection and begins to
// send, which is before any part of the request's message.
type sentHandler struct{}

// HandleRPC sets the mark.
func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if m, ok := ctx.Value(sentKey{}).(*sentMark); ok {
		m.Store(true)
	}
}

// TagRPC does nothing.
func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn does nothing.
func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}
