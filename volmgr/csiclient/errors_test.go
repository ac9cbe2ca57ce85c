package csiclient_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCodes checks the retry class of each code, for each call.
func TestCodes(t *testing.T) {
	table := []struct {
		code     codes.Code
		name     string
		retry    volume.Retry
		answered bool
	}{
		{codes.Aborted, "Aborted", volume.RetryBackoff, true},
		{codes.InvalidArgument, "InvalidArgument", volume.RetryChange, true},
		{codes.AlreadyExists, "AlreadyExists", volume.RetryChange, true},
		{codes.OutOfRange, "OutOfRange", volume.RetryChange, true},
		{codes.NotFound, "NotFound", volume.RetryBackoff, true},
		{codes.ResourceExhausted, "ResourceExhausted", volume.RetryBackoff, true},
		{codes.FailedPrecondition, "FailedPrecondition", volume.RetryBackoff, true},
		{codes.Unimplemented, "Unimplemented", volume.RetryNever, true},
		{codes.Unauthenticated, "Unauthenticated", volume.RetryChange, true},
		{codes.PermissionDenied, "PermissionDenied", volume.RetryChange, true},
		{codes.Canceled, "Canceled", volume.RetryBackoff, false},
		{codes.DeadlineExceeded, "DeadlineExceeded", volume.RetryBackoff, false},
		{codes.Unavailable, "Unavailable", volume.RetryBackoff, true},
		{codes.Unknown, "Unknown", volume.RetryBackoff, true},
		{codes.Internal, "Internal", volume.RetryBackoff, true},
		{codes.DataLoss, "DataLoss", volume.RetryBackoff, true},
		{codes.Code(42), "Code(42)", volume.RetryBackoff, true},
	}
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for rpc, call := range rpcs {
		for _, row := range table {
			t.Run(fmt.Sprintf("%s/%s", rpc, row.name), func(t *testing.T) {
				f.fails(rpc, status.Error(row.code, "the plugin's words"))
				want := volume.CallError{Step: rpc, Code: row.name, Message: "the plugin's words", Retry: row.retry, Answered: row.answered}
				if rpc == "NodeExpandVolume" && row.code == codes.FailedPrecondition {
					want.Retry = volume.RetryNever // the spec forbids retries of this call
				}
				if got := callError(t, call(t.Context(), c, nil)); !reflect.DeepEqual(*got, want) {
					t.Errorf("got %+v, want %+v", *got, want)
				}
			})
		}
	}
}

func callError(t *testing.T, err error) *volume.CallError {
	t.Helper()
	var call *volume.CallError
	if !errors.As(err, &call) {
		t.Fatalf("%v (%T) is no *volume.CallError", err, err)
	}
	return call
}

func TestDeadline(t *testing.T) {
	f := newFake(t)
	f.on(func(ctx context.Context, m string, _ any) (any, error) {
		if m == "NodeStageVolume" || m == "DeleteVolume" || m == "Probe" {
			if _, ok := ctx.Deadline(); !ok {
				t.Errorf("%s came without a deadline", m)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	})
	c := f.client(t, csiclient.Options{NodeTimeout: 500 * time.Millisecond, ControllerTimeout: 600 * time.Millisecond, ProbeTimeout: 700 * time.Millisecond})
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	probe := func(ctx context.Context, c *csiclient.Client, _ call.Secrets) error {
		_, err := c.Probe(ctx)
		return err
	}
	for name, call := range map[string]func(context.Context, *csiclient.Client, call.Secrets) error{
		"node": rpcs["NodeStageVolume"], "controller": rpcs["DeleteVolume"], "probe": probe,
	} {
		got := callError(t, call(t.Context(), c, nil))
		if got.Code != "DeadlineExceeded" || got.Answered || got.Retry != volume.RetryBackoff {
			t.Errorf("%s: got %+v", name, *got)
		}
	}
}

// TestCallerGivesUp checks the error of a call that the caller cancels. The error must say that the
// plugin may still be working on the call.
func TestCallerGivesUp(t *testing.T) {
	f := newFake(t)
	arrived := make(chan struct{})
	f.on(func(ctx context.Context, m string, _ any) (any, error) {
		if m == "NodeUnstageVolume" {
			close(arrived)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, nil
	})
	c := f.client(t, csiclient.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if got := callError(t, rpcs["NodeUnstageVolume"](ctx, c, nil)); got.Code != "Canceled" || got.Answered {
		t.Errorf("got %+v", *got)
	}
}

// TestConnectionLost checks the errors for a plugin that dies during a call, and for a socket
// without a plugin.
func TestConnectionLost(t *testing.T) {
	f := newFake(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	f.on(func(_ context.Context, m string, _ any) (any, error) {
		if m == "NodeUnstageVolume" {
			close(arrived)
			<-release
		}
		return nil, nil
	})
	c := f.client(t, csiclient.Options{})
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := make(chan error, 1)
	go func() { lost <- c.WaitLost(t.Context()) }()
	stopped := make(chan struct{})
	go func() { <-arrived; close(release); close(stopped); f.server.Stop() }()
	// Stop may close the connection before or after the plugin answers. If the call fails, its code
	// must be Unavailable, and the call must count as unanswered.
	if err := rpcs["NodeUnstageVolume"](t.Context(), c, nil); err != nil {
		if got := callError(t, err); got.Code != "Unavailable" || got.Answered {
			t.Errorf("lost: got %+v", *got)
		}
	}
	<-stopped
	if err := <-lost; err != nil {
		t.Errorf("WaitLost: %v", err)
	}

	gone, err := csiclient.Dial(f.socket+"-none", csiclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	got := callError(t, rpcs["NodeUnstageVolume"](t.Context(), gone, nil))
	if got.Code != "Unavailable" || !got.Answered || got.Retry != volume.RetryBackoff {
		t.Errorf("never connected: got %+v", *got)
	}
}

// TestUnansweredWhenCut checks that a call counts as unanswered if the connection breaks during the
// call.
func TestUnansweredWhenCut(t *testing.T) {
	f := newFake(t)
	arrived := make(chan struct{})
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	f.on(func(_ context.Context, m string, _ any) (any, error) {
		if m == "NodeUnstageVolume" {
			close(arrived)
			<-hold
		}
		return nil, nil
	})
	c := f.client(t, csiclient.Options{})
	go func() {
		<-arrived
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := callError(t, rpcs["NodeUnstageVolume"](t.Context(), c, nil)); got.Code != "Unavailable" || got.Answered {
		t.Errorf("got %+v", *got)
	}
}

// TestReconnect checks that the client reconnects to a plugin that was restarted at the same path.
// This must happen within the longest pause between two attempts.
func TestReconnect(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.server.Stop()
	if err := os.Remove(f.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := c.Probe(t.Context()); err == nil {
		t.Fatal("a stopped plugin answers")
	}
	f.serve(t)
	deadline := time.After(15 * time.Second)
	for {
		if _, err := c.Probe(t.Context()); err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal("no connection 15s after the plugin's return")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestPlainErrorIsUnknown(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{Interceptors: []grpc.UnaryClientInterceptor{
		func(_ context.Context, method string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
			if strings.HasSuffix(method, "NodeUnstageVolume") {
				return errors.New("no status at all")
			}
			return nil
		},
	}})
	got := callError(t, rpcs["NodeUnstageVolume"](t.Context(), c, nil))
	if got.Code != "Unknown" || got.Answered || got.Retry != volume.RetryBackoff {
		t.Errorf("got %+v", *got)
	}
	if f.count("NodeUnstageVolume") != 0 {
		t.Error("the interceptor was passed by")
	}
}

func TestMessageIsMadeFit(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for name, row := range map[string]struct{ words, want string }{
		"one line":   {"mount failed:\n\texit status 32\r\n", "mount failed: exit status 32"},
		"controls":   {"a\x1b[31mred\x07\x00 \u202eb", "a[31mred b"},
		"no message": {" \n", "(the plugin gave no message)"},
	} {
		f.fails("NodeUnstageVolume", status.Error(codes.Internal, row.words))
		if got := callError(t, rpcs["NodeUnstageVolume"](t.Context(), c, nil)); got.Message != row.want {
			t.Errorf("%s: got %q, want %q", name, got.Message, row.want)
		}
	}
	f.fails("NodeUnstageVolume", status.Error(codes.Internal, strings.Repeat("é", 1<<20)))
	got := callError(t, rpcs["NodeUnstageVolume"](t.Context(), c, nil))
	if got.Code != "Internal" || len(got.Message) > 1024 || len(got.Message) < 1000 || !utf8.ValidString(got.Message) || !strings.HasSuffix(got.Message, "é…") {
		t.Errorf("huge message: code %s, %d bytes, ends in %q", got.Code, len(got.Message), got.Message[len(got.Message)-8:])
	}
}

func TestSecretsAreScrubbed(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	key := "-----BEGIN KEY-----\nMIIabcdefgh\n-----END KEY-----\n"
	secrets := call.Secrets{"password": call.NewSecret("hunter2 &x\n"), "key": call.NewSecret(key), "short": call.NewSecret("hunter")}
	said := "mount -o password=hunter2 &x failed; url hunter2+%26x; quoted \"hunter2 &x\\n\"; b64 aHVudGVyMiAmeA==, aHVudGVyMiAmeA; hex 68756e74657232202678, 68756E746572322026780A; key " + key + " in pieces MIIabcdefgh"
	f.fails("NodeStageVolume", status.Error(codes.Internal, said))
	got := callError(t, rpcs["NodeStageVolume"](t.Context(), c, secrets))
	for _, leak := range []string{"hunter", "aHVudGVy", "68756", "MIIabc"} {
		if strings.Contains(got.Error(), leak) {
			t.Errorf("%q leaks in %q", leak, got.Error())
		}
	}
	if !strings.Contains(got.Message, "mount -o password=*** failed") {
		t.Errorf("got %q", got.Message)
	}
	// This call itself has no secrets. The length limit truncates its message in the middle of a
	// secret that an earlier call sent.
	f.fails("NodeUnstageVolume", status.Error(codes.Internal, strings.Repeat("z", 1020)+"hunter2 &x"))
	if got := callError(t, rpcs["NodeUnstageVolume"](t.Context(), c, nil)); strings.Contains(got.Message, "hun") {
		t.Errorf("a secret of an earlier call leaks: …%q", got.Message[1000:])
	}
	// The error must come from the plugin, not from the client.
	if f.count("NodeStageVolume") != 1 {
		t.Error("stage was not called")
	}
}
