package cluster_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/volmgr/shared"
)

// claimedVersion is an etcd that only tells its version.
type claimedVersion struct {
	pb.UnimplementedMaintenanceServer
	version string
}

// Status returns the version.
func (c claimedVersion) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: 1}, Version: c.version}, nil
}

// TestVersions checks which versions of etcd the store uses. It sends no transaction to another one.
func TestVersions(t *testing.T) {
	tooOld := func(version string) string { return "its version is " + version + ", and at least 3.5.18 is needed" }
	for _, c := range []struct{ version, refusal string }{
		{"3.5.18", ""}, {"3.5.18-rc.1", ""}, {"3.5.19", ""}, {"3.5.100", ""}, {"3.6.0", ""}, {"3.7.3", ""}, {"4.0.0", ""},
		{"3.5.17", tooOld("3.5.17")}, {"3.5.9", tooOld("3.5.9")}, {"3.4.37", tooOld("3.4.37")}, {"2.3.8", tooOld("2.3.8")},
		{"", `its version "" cannot be read`}, {"3.5", tooOld("3.5")}, {"three", `its version "three" cannot be read`},
	} {
		t.Run(c.version, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			pb.RegisterMaintenanceServer(server, claimedVersion{version: c.version})
			go func() { _ = server.Serve(l) }()
			defer server.Stop()

			s := open(t, cluster.Options{Endpoints: []string{"http://" + l.Addr().String()}, Timeout: short})
			err = put(t.Context(), s, "k")
			if !errors.Is(err, shared.ErrUnsupported) {
				t.Fatalf("the error is %v, want %v", err, shared.ErrUnsupported)
			}
			refusal := c.refusal
			if refusal == "" {
				refusal = "unknown service etcdserverpb.KV" // the store has sent the transaction
			}
			if !strings.Contains(err.Error(), refusal) {
				t.Errorf("the error is %q, want %q", err, refusal)
			}
		})
	}
}
