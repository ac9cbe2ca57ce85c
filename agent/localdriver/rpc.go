package localdriver

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// intercept converts every error to a gRPC status, recovers from a panic, and logs each call at
// debug level. It never logs requests, because they may contain secrets.
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
	return resp, csierr.ToStatus(err)
}

// volume finds the volume with the id that a request names. If the driver cannot have made the id,
// volume returns a not-found error and does not use the id in a path.
func (d *driver) volume(id string) (store.Volume, error) {
	if id == "" {
		return store.Volume{}, csierr.Invalidf("the volume id is empty")
	}
	v, err := d.store.Get(id)
	if errors.Is(err, store.ErrNoVolume) {
		return store.Volume{}, csierr.Errorf(codes.NotFound, "no volume %q", id)
	}
	return v, err
}
