package csiclient

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// wire records how far one call has progressed on the connection. A status code alone does not show
// whether the plugin sent the code or gRPC created it.
type wire struct {
	sent     atomic.Bool // the headers of the request were sent
	answered atomic.Bool // the plugin's trailers, which contain its status, were received
}

// wireKey is the context key under which a call's wire is stored.
type wireKey struct{}

// wireTap is a gRPC stats handler that records the progress of every call in its wire.
type wireTap struct{}

var _ stats.Handler = wireTap{}

// HandleRPC implements stats.Handler.
func (wireTap) HandleRPC(ctx context.Context, s stats.RPCStats) {
	w, ok := ctx.Value(wireKey{}).(*wire)
	if !ok {
		return
	}

	switch s.(type) {
	case *stats.OutHeader:
		w.sent.Store(true)
	case *stats.InTrailer:
		w.answered.Store(true)
	}
}

// TagRPC implements stats.Handler.
func (wireTap) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (wireTap) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (wireTap) HandleConn(context.Context, stats.ConnStats) {}
