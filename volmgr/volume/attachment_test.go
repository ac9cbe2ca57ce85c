package volume_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// attachPlugin returns a ready plugin with ControllerPublishVolume and staging.
func attachPlugin() plugin.View {
	return plugin.View{Known: true, Ready: true, State: "ready", Info: plugin.Info{NodeID: "n", Caps: plugin.Caps{Attach: true, Stage: true}}}
}

// TestAttachmentWatched checks that the agent watches for a late effect of a failed
// ControllerPublishVolume or ControllerUnpublishVolume. If the plugin refused the call, no watch is
// needed.
func TestAttachmentWatched(t *testing.T) {
	for _, tt := range []struct {
		name   string
		kind   call.Method
		code   string
		answer bool
		watch  []volume.Watch
	}{
		{"no answer to an attach", call.ControllerPublish, "DeadlineExceeded", false, []volume.Watch{{Attachment: true}}},
		{"an attach failed", call.ControllerPublish, "Internal", true, []volume.Watch{{Attachment: true}}},
		{"an attach was refused", call.ControllerPublish, "FailedPrecondition", true, nil},
		{"no answer to a detach", call.ControllerUnpublish, "DeadlineExceeded", false, []volume.Watch{{Attachment: true, Undo: true}}},
		{"a detach failed", call.ControllerUnpublish, "Internal", true, []volume.Watch{{Attachment: true, Undo: true}}},
		{"a detach was refused", call.ControllerUnpublish, "InvalidArgument", true, nil},
	} {
		r := offering(call.SingleNodeWriter)
		r.Node = volume.NodeSide{Uses: volume.Uses{Attach: true, Stage: true}, Attached: volume.Present, NodeID: "n"}
		out := volume.Outcome{Err: &volume.CallError{Step: string(tt.kind), Code: tt.code, Retry: volume.RetryBackoff, Answered: tt.answer}}
		got, _ := volume.Apply(r, volume.Action{Kind: tt.kind, NodeID: "n"}, out)
		if !slices.Equal(got.Node.Watches, tt.watch) || got.Node.Attached != volume.Failed {
			t.Errorf("%s: it is %s, and these are watched for: %+v", tt.name, got.Node.Attached, got.Node.Watches)
		}
	}
}

// TestLateDetachDecided checks a volume whose earlier ControllerUnpublishVolume may still take
// effect. The agent must not connect the volume. If the call failed, the agent must repeat it. A
// restart of the plugin does not end the wait.
func TestLateDetachDecided(t *testing.T) {
	r := attaching(t)
	r.Node.Attached, r.Node.Watches = volume.Absent, []volume.Watch{{Attachment: true, Undo: true}}
	o := volume.Observed{Plugin: attachPlugin(), WatchOver: true}
	if a := volume.Next(r, o); a.Kind != volume.Wait || a.Cause != volume.CauseWatch {
		t.Errorf("while a detach may come late: %+v", a)
	}
	r.Node.Attached = volume.Failed
	if a := volume.Next(r, o); a.Kind != volume.Prove {
		t.Errorf("a detach that failed: %+v", a)
	}
	r.Node.Attached, o.AttachmentOver = volume.Absent, true
	if a := volume.Next(r, o); a.Kind != call.ControllerPublish {
		t.Errorf("once it cannot come any more: %+v", a)
	}
}

// TestLateAttachDecided checks an unwanted volume whose earlier ControllerPublishVolume may still
// take effect. The agent must wait until no late effect is possible, and only then disconnect the
// volume. If the agent disconnected the volume too early, the connection counts as unknown.
func TestLateAttachDecided(t *testing.T) {
	r, err := volume.Detach(attaching(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	r.Node.Attached, r.Node.NodeID, r.Node.Watches = volume.Failed, "n", []volume.Watch{{Attachment: true}}
	r, _ = volume.Apply(r, volume.Action{Kind: volume.Prove}, volume.Outcome{})
	o := volume.Observed{Plugin: attachPlugin(), WatchOver: true}
	if a := volume.Next(r, o); a.Kind != volume.Wait || a.Cause != volume.CauseWatch {
		t.Errorf("while an attach may come late: %+v", a)
	}
	o.AttachmentOver = true
	a := volume.Next(r, o)
	if a.Kind != call.ControllerUnpublish || !a.Sure {
		t.Fatalf("once it cannot come any more: %+v", a)
	}
	if now, _ := volume.Apply(r, a, volume.Outcome{}); now.Node.Attached != volume.Absent || len(now.Node.Watches) > 0 {
		t.Errorf("detached for certain: %+v", now.Node)
	}
	a.Sure = false
	if now, _ := volume.Apply(r, a, volume.Outcome{}); now.Node.Attached != volume.Unknown || len(now.Node.Watches) != 1 {
		t.Errorf("detached, and it may be attached again: %+v", now.Node)
	}
}

// attaching returns a volume with a claim for which no side exists yet.
func attaching(t *testing.T) volume.Record {
	t.Helper()
	r, err := volume.Admit(offering(call.SingleNodeWriter), writer("a"), attachPlugin().Info, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestBlockedByDebt checks a volume whose storage still has pending calls of a forced deregister.
// In every state of the record, the agent must send no call. It may still delete a claim that has
// no side.
func TestBlockedByDebt(t *testing.T) {
	o := volume.Observed{Plugin: attachPlugin(), Leftover: "a debt comes first", WatchOver: true, AttachmentOver: true}
	r, err := volume.Detach(attaching(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	if a := volume.Next(r, o); a.Kind != volume.Free {
		t.Errorf("a claim of which nothing was made: %+v", a)
	}
	doubted, _ := volume.Loaded(r, volume.Crashed, false)
	for range 10 {
		a := volume.Next(doubted, o)
		if a.RPC() {
			t.Fatalf("called: %+v", a)
		}
		if a.Kind == volume.Wait {
			if a.Cause != volume.CauseLeftover {
				t.Errorf("it waits for %q: %s", a.Cause, a.Reason)
			}
			return
		}
		doubted, _ = volume.Apply(doubted, a, volume.Outcome{})
	}
	t.Error("it does not wait")
}

// TestPendingCalls checks the report about pending calls. If a call has failed, the report must
// name the command that discards the pending calls.
func TestPendingCalls(t *testing.T) {
	r := offering(call.SingleNodeWriter)
	r.Node.PendingCalls = pendingAfterDetach()
	failed := &volume.Attempt{Action: volume.Action{Kind: call.NodeUnpublish, Pending: true}, Tries: 1, Err: &volume.CallError{
		Step: "NodeUnpublishVolume", Code: "Internal", Message: "no such target", Retry: volume.RetryBackoff, Answered: true}}
	up, down := attachPlugin(), plugin.View{Known: true, State: "stopped"}
	const giveUp = "volctl volume deregister data --force --forget"
	for _, tt := range []struct {
		name   string
		at     *volume.Attempt
		p      plugin.View
		failed bool
		words  []string
	}{
		{"being made", nil, up, false, []string{"are being made"}},
		{"no plugin", nil, down, false, []string{"when plugin", giveUp, "never receives"}},
		{"failed", failed, up, true, []string{"the last try failed: NodeUnpublishVolume: Internal: no such target", giveUp, "never receives"}},
	} {
		c := r.PendingCallState(tt.at, tt.p)
		for _, w := range tt.words {
			if !strings.Contains(c.How, w) {
				t.Errorf("%s: %q does not say %q", tt.name, c.How, w)
			}
		}
		if c.Failed != tt.failed || suggest.Words(c.GiveUp) != giveUp {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
	e := volume.Explain(r, volume.Observed{Plugin: up}, failed)
	if suggest.Words(e.Else) != giveUp || !strings.Contains(strings.Join(e.Notes, "\n"), "no such target") {
		t.Errorf("the volume's own status: %+v", e)
	}
	// A user has registered the same storage again, under another id.
	again := offering(call.SingleNodeWriter)
	again.Volume.ID = "other"
	e = volume.Explain(again, volume.Observed{Plugin: up, Leftover: "a debt comes first", Pending: &r, PendingTry: failed}, nil)
	if suggest.Words(e.Else) != giveUp || !strings.Contains(strings.Join(e.Notes, "\n"), giveUp) {
		t.Errorf("the status under another id: %+v", e)
	}
}
