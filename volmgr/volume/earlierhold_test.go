package volume_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestUnfitHold lets a record find an earlier hold of its host that does not fit its claims. The host undoes all
// sides of that hold and gives it up, and then gets another hold for the claims.
func TestUnfitHold(t *testing.T) {
	r, o := sharedMounted(t), asMounted()
	unmounted(&r, &o)
	r.Node.Attached, r.Node.Hold = volume.Absent, volume.Hold{State: volume.Unknown, Operation: "op", Access: call.SingleNodeMultiWriter}
	r, adopted := volume.AdoptHold(r, volume.EarlierHold{
		Hold: volume.Hold{Operation: "earlier", Access: call.MultiNodeSingleWriter, Reader: true}, Attached: true, NodeID: "n",
	})
	if h := r.Node.Hold; !adopted || h.Operation != "earlier" || !h.Unfit || r.Node.Attached != volume.Unknown {
		t.Fatalf("adopted %t, attached %s, hold %+v", adopted, r.Node.Attached, h)
	}
	if _, err := volume.Admit(r, with(writer("b"), func(q *volume.Request) { q.Operation = "new" }), o.Plugin.Info, now); err != nil {
		t.Errorf("a claim of the same kind is refused: %v", err)
	}

	var steps []string
	for a := (volume.Action{}); a.Kind != volume.Acquire && len(steps) < 20; {
		a = volume.Next(r, o)
		steps = append(steps, string(a.Kind))
		r, _ = volume.Apply(r, a, volume.Outcome{})
	}
	want := "doubt NodeUnstageVolume prove ControllerUnpublishVolume prove give-up-hold acquire-hold"
	if got := strings.Join(steps, " "); got != want {
		t.Errorf("the steps are %s, want %s", got, want)
	}
	if h := r.Node.Hold; h.Unfit || h.Reader || h.Access != call.SingleNodeMultiWriter || !r.Claims["a"].Wanted {
		t.Errorf("the next hold is %+v, and the claim is %+v", h, r.Claims["a"])
	}
}

// TestFindAttachment lets the cluster show an attachment while a host gives its hold up. The host detaches the volume
// before it tries again.
func TestFindAttachment(t *testing.T) {
	r, o := sharedMounted(t), asMounted()
	released(&r, &o)
	r.Node.Attached, r.Node.NodeID, r.Node.Proven, r.Node.Hold.State = volume.Absent, "", true, volume.Failed
	if _, changed := volume.FindAttachment(r, "later", "n"); changed {
		t.Error("the attachment of another hold has changed the record")
	}
	r, changed := volume.FindAttachment(r, "op", "n")
	if a := volume.Next(r, o); !changed || a.Kind != volume.Prove {
		t.Errorf("changed %t, and the next step is %+v", changed, a)
	}
}
