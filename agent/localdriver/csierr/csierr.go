// Package csierr makes errors with the gRPC codes that the CSI specification requires. The other
// packages of the driver report such errors without any knowledge of gRPC servers.
package csierr

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ToStatus gives an error its gRPC code: the code that it already carries, or a code chosen by its
// cause. INTERNAL is the fallback, and the caller then treats the outcome as unknown.
func ToStatus(err error) error {
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

// Error is an error with the gRPC code that the caller must receive. Unlike a status error, it can
// be wrapped without "rpc error: code = …" in the middle of a sentence.
type Error struct {
	Code codes.Code
	msg  string
}

func (e *Error) Error() string { return e.msg }

// GRPCStatus lets the status package find the code, also when e is wrapped.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.msg) }

// Errorf returns an error with this code.
func Errorf(code codes.Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// Invalidf returns an error for a request that is invalid regardless of the present state.
func Invalidf(format string, args ...any) error {
	return Errorf(codes.InvalidArgument, format, args...)
}

// Preconditionf returns an error for a request that the present state does not allow.
func Preconditionf(format string, args ...any) error {
	return Errorf(codes.FailedPrecondition, format, args...)
}

// Existsf returns an error for an object that exists with other properties.
func Existsf(format string, args ...any) error {
	return Errorf(codes.AlreadyExists, format, args...)
}

// OutOfRangef returns an error for a size that is not possible.
func OutOfRangef(format string, args ...any) error {
	return Errorf(codes.OutOfRange, format, args...)
}

// Internalf returns an error for a failed call that may have had an effect.
func Internalf(format string, args ...any) error {
	return Errorf(codes.Internal, format, args...)
}
