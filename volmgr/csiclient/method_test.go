package csiclient

import (
	"maps"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/volmgr/call"
)

// TestMethods compares the table of methods with the services in the CSI spec.
func TestMethods(t *testing.T) {
	spec := map[call.Method]call.Service{}
	for service, descs := range map[call.Service][]grpc.ServiceDesc{
		call.Node:       {csi.Node_ServiceDesc},
		call.Controller: {csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc},
	} {
		for _, d := range descs {
			for _, m := range d.Methods {
				spec[call.Method(m.MethodName)] = service
			}
		}
	}

	for _, m := range call.Methods() {
		if want, ok := spec[m]; !ok || m.Service() != want {
			t.Errorf("%s belongs to the service %q, want %q", m, m.Service(), want)
		}
	}
}

// TestHandlers checks that the client has a function for each call, and no other functions.
func TestHandlers(t *testing.T) {
	if got := slices.Sorted(maps.Keys(handlers(&Client{}))); !slices.Equal(got, call.Methods()) {
		t.Errorf("the client handles %v, want %v", got, call.Methods())
	}
}
