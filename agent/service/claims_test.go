package service

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestAtFD checks that only root may pass a file descriptor to the agent, and that the agent looks
// for the descriptor in the calling process.
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
			code = APIError(err).Code
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

// TestTermsThereAndBack converts a request to a claim and back to an answer, and checks that the
// answer shows the same terms. It also checks that an unprintable note is refused.
func TestTermsThereAndBack(t *testing.T) {
	ask := api.ClaimRequest{
		ReadOnly: true, AccessMode: "single-node-writer", AttachmentMode: "file-system", At: "/srv", AtFlags: []string{"nodev", "nosuid"}, AtWritable: true,
		Ownership: api.Ownership{UID: new(uint32(5)), Mode: "0770"}, Owner: api.Owner{Kind: api.OwnerNone}, Note: "größe 2",
	}
	asked, err := fromClaimRequest(ask, peer.Peer{})
	if err != nil {
		t.Fatal(err)
	}

	got := toClaim(volume.Record{}, volume.Claim{Terms: asked.Terms}, plugin.View{Known: true, Ready: true}, nil)
	want := api.Claim{
		ReadOnly: true, AccessMode: ask.AccessMode, AttachmentMode: ask.AttachmentMode, Owner: ask.Owner, Path: "/srv", At: "/srv",
		AtFlags: "nosuid,nodev", AtWritable: true, Ownership: ask.Ownership, Note: ask.Note, Remark: got.Remark,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}

	ask.Note = "a\nb"
	var e *api.Error
	if _, err := fromClaimRequest(ask, peer.Peer{}); !errors.As(err, &e) || e.Code != api.CodeInvalid {
		t.Errorf("a note of two lines: %v", err)
	}
}
