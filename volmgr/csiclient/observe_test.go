package csiclient_test

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/volmgr/csiclient"
)

// tally is an Observer that records calls.
type tally struct {
	mu    sync.Mutex
	began []string
	ended []string // one text "method code" for each call
	bad   bool
}

func (o *tally) Began(method string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.began = append(o.began, method)
}

func (o *tally) Ended(method, code string, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = append(o.ended, method+" "+code)
	o.bad = o.bad || took <= 0 || took > time.Minute
}

// TestObserver checks that the observer sees every call exactly once, with the call's CSI name and
// the code of the answer.
func TestObserver(t *testing.T) {
	f := newFake(t)
	o := &tally{}
	var sent []string
	c := f.client(t, csiclient.Options{Observer: o, Interceptors: []grpc.UnaryClientInterceptor{
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			sent = append(sent, path.Base(method))
			return next(ctx, method, req, reply, cc, opts...)
		},
	}})
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, rpc := range rpcs {
		_ = rpc(t.Context(), c, nil) // an error is ignored, because the client may reject the fake's empty answer
	}
	if !slices.Equal(o.began, sent) || len(sent) < 6+len(rpcs) {
		t.Errorf("observed\n%v\nand sent\n%v", o.began, sent)
	}
	for i, end := range o.ended {
		if i >= len(sent) || end != sent[i]+" OK" {
			t.Errorf("call %d ended as %q", i, end)
		}
	}
	if o.bad {
		t.Error("a call took no time, or too much")
	}

	for code, want := range map[codes.Code]string{codes.Internal: "Internal", codes.Unauthenticated: "Unauthenticated", 4711: "Unknown", 17: "Unknown"} {
		f.on(func(context.Context, string, any) (any, error) { return nil, status.Error(code, "no") })
		_ = rpcs["NodeStageVolume"](t.Context(), c, nil)
		if got := o.ended[len(o.ended)-1]; got != "NodeStageVolume "+want {
			t.Errorf("code %d is observed as %q", code, got)
		}
	}
	f.on(func(ctx context.Context, _ string, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_ = rpcs["NodeStageVolume"](ctx, c, nil)
	if got := o.ended[len(o.ended)-1]; !strings.HasSuffix(got, " DeadlineExceeded") || len(o.began) != len(o.ended) {
		t.Errorf("past its deadline: %q, %d began and %d ended", got, len(o.began), len(o.ended))
	}
}
