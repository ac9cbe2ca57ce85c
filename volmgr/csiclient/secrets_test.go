package csiclient_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
)

// takers returns the names of the CSI calls whose requests have a field for secrets. It omits
// SnapshotMetadata, which is a service for backup programs that the agent does not call.
func takers(t *testing.T) []string {
	t.Helper()
	var names []string
	services := csi.File_csi_proto.Services()
	for i := range services.Len() {
		if services.Get(i).Name() == "SnapshotMetadata" {
			continue
		}
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if m := methods.Get(j); m.Input().Fields().ByName("secrets") != nil {
				names = append(names, "/"+string(services.Get(i).FullName())+"/"+string(m.Name()))
			}
		}
	}
	if slices.Sort(names); len(names) < 10 {
		t.Fatalf("CSI has more calls with secrets than %q", names)
	}
	return names
}

// TestSecretsGoWithEveryCall makes every call of the client, with secrets if the request can hold
// them. The test checks that each CSI message with a field for secrets contains these secrets.
func TestSecretsGoWithEveryCall(t *testing.T) {
	secrets := call.Secrets{"key": call.NewSecret("hunter2")}
	given := map[string]bool{}
	see := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		m := req.(proto.Message).ProtoReflect()
		if field := m.Descriptor().Fields().ByName("secrets"); field != nil {
			given[method] = m.Get(field).Map().Len() == 1
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	c := newFake(t).client(t, csiclient.Options{Interceptors: []grpc.UnaryClientInterceptor{see}})
	for name, do := range rpcs {
		if err := do(t.Context(), c, secrets); err != nil {
			t.Logf("%s: %v", name, err) // the client may reject the fake's empty answer
		}
	}
	for _, name := range takers(t) {
		if with, sent := given[name]; !sent {
			t.Errorf("no call of the client is %s, or it is not sent", name)
		} else if !with {
			t.Errorf("%s is sent without secrets", name)
		}
	}
}
