package apiserver

import (
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestAtFD checks that only root may lend a descriptor, and that it belongs to the calling process.
func TestAtFD(t *testing.T) {
	root, user := peer.Peer{PID: 7, Known: true}, peer.Peer{PID: 8, UID: 1000, Known: true}
	for _, tt := range []struct {
		name string
		fd   *int
		peer peer.Peer
		want *volume.Descriptor
		code api.Code
	}{
		{"none", nil, user, nil, ""},
		{"none, said so", new(-1), user, nil, ""},
		{"root's", new(3), root, &volume.Descriptor{PID: 7, FD: 3}, ""},
		{"a user's", new(3), user, nil, api.CodePermission},
		{"who knows whose", new(3), peer.Peer{}, nil, api.CodePermission},
		{"none that can be", new(-3), root, nil, api.CodeInvalid},
	} {
		got, err := atFD(tt.fd, tt.peer)
		var code api.Code
		if err != nil {
			code = toAPI(err).Code
		}
		if code != tt.code || (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
	if got := fromOwner(api.Owner{Kind: api.OwnerMount}, root); got != (volume.Owner{Kind: volume.OwnerMount, PID: 7}) {
		t.Errorf("a mount that names no process is asked for by %+v", got)
	}
	if got := fromOwner(api.Owner{Kind: api.OwnerMount, PID: 9, Unit: "x"}, root); got != (volume.Owner{Kind: volume.OwnerMount, PID: 9}) {
		t.Errorf("a mount that names a process is asked for by %+v", got)
	}
}
