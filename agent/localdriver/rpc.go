package localdriver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// intercept converts every error into a CSI status in one place, recovers from a panic, and logs
// each call at debug level. It never logs requests, because they may carry secrets.
func (d *driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	start := time.Now()
	defer func() {
		if r := recover(); r != nil {
			d.log.Error("a call panicked", "method", info.FullMethod, "panic", r, "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "%s panicked: %v", info.FullMethod, r)
		}
		d.log.Debug("call done", "method", info.FullMethod, "code", status.Code(err), "took", time.Since(start))
	}()

	resp, err = next(ctx, req)
	return resp, toStatus(err)
}

// toStatus gives an error its gRPC code: the code that it already carries, or a code chosen by its
// cause. INTERNAL is the fallback, and the caller then treats the outcome as unknown.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}

	code := codes.Internal
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = codes.ResourceExhausted
	}

	return status.Error(code, err.Error())
}

// coded is an error with the gRPC code that the caller must receive. Unlike a status error, it can
// be wrapped without "rpc error: code = …" in the middle of a sentence.
type coded struct {
	code codes.Code
	msg  string
}

func (e *coded) Error() string { return e.msg }

// GRPCStatus lets the status package find the code, also when e is wrapped.
func (e *coded) GRPCStatus() *status.Status { return status.New(e.code, e.msg) }

func codedf(code codes.Code, format string, args ...any) error {
	return &coded{code, fmt.Sprintf(format, args...)}
}

func invalidf(format string, args ...any) error {
	return codedf(codes.InvalidArgument, format, args...)
}

func preconditionf(format string, args ...any) error {
	return codedf(codes.FailedPrecondition, format, args...)
}

func existsf(format string, args ...any) error {
	return codedf(codes.AlreadyExists, format, args...)
}

func outOfRangef(format string, args ...any) error {
	return codedf(codes.OutOfRange, format, args...)
}

func internalf(format string, args ...any) error {
	return codedf(codes.Internal, format, args...)
}

// volume finds a volume by the id in a request. An id that the driver cannot have made is reported
// as not found, and never becomes part of a path.
func (d *driver) volume(id string) (volume, error) {
	if id == "" {
		return volume{}, invalidf("the volume id is empty")
	}
	v, err := d.store.get(id)
	if errors.Is(err, errNoVolume) {
		return volume{}, codedf(codes.NotFound, "no volume %q", id)
	}
	return v, err
}
