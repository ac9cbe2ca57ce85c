// Package csierr makes errors with the gRPC codes that the CSI specification requires. The other
// packages of the driver return these errors, so they need no gRPC packages.
package csierr

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ToStatus converts an error to a gRPC status. If the error has no code, ToStatus chooses a code by
// the error's cause, and otherwise INTERNAL. After INTERNAL, the caller treats the outcome as
// unknown.
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

// Error is an error with the gRPC code that the caller must receive. Unlike a gRPC status error, it
// can be wrapped in another error without adding "rpc error: code = …" to the text.
type Error struct {
	Code codes.Code
	msg  string
}

func (e *Error) Error() string { return e.msg }

// GRPCStatus lets the package status find the code, even if e is wrapped.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.msg) }

// Errorf returns an error with the given code.
func Errorf(code codes.Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// Invalidf returns an INVALID_ARGUMENT error, for a request that is invalid in every state of the
// driver.
func Invalidf(format string, args ...any) error {
	return Errorf(codes.InvalidArgument, format, args...)
}

// Preconditionf returns a FAILED_PRECONDITION error, for a request that the present state does not
// allow.
func Preconditionf(format string, args ...any) error {
	return Errorf(codes.FailedPrecondition, format, args...)
}

// Existsf returns an ALREADY_EXISTS error, for an object that exists with other properties.
func Existsf(format string, args ...any) error {
	return Errorf(codes.AlreadyExists, format, args...)
}

// OutOfRangef returns an OUT_OF_RANGE error, for a size that is not possible.
func OutOfRangef(format string, args ...any) error {
	return Errorf(codes.OutOfRange, format, args...)
}

// Internalf returns an INTERNAL error, for a failed call that may have had an effect.
func Internalf(format string, args ...any) error {
	return Errorf(codes.Internal, format, args...)
}
