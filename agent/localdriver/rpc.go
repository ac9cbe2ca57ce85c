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
	return resp, csierr.ToStatus(err)
}

// volume finds a volume by the id in a request. If the driver cannot have made the id, it returns a
// not-found error and does not use the id in a path.
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
