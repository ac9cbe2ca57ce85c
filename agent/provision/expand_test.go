package provision_test

import (
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// sized returns a world with a volume of 10 bytes and a plugin that can expand it.
func sized(t *testing.T) *world {
	t.Helper()
	w := newWorld()
	w.view.Info.Caps.Expand, w.view.Info.Caps.NodeExpand = true, true
	v := existing()
	v.CapacityMin = 10
	w.mustRegister(t, v)
	w.calls, w.events, w.woken = nil, nil, nil
	return w
}

// carriedOut makes the fake queue finish the volume's expansion with the outcome out each time the
// queue is woken.
func (w *world) carriedOut(out volume.Outcome) {
	w.wake = func(id string) {
		r := w.volumes[id]
		w.volumes[id], _ = volume.Apply(r, volume.Action{Kind: call.ControllerExpand, Size: r.Volume.Expansion.Want}, out)
	}
}

func TestExpand(t *testing.T) {
	w := sized(t)
	r, ch, err := w.service().Expand(t.Context(), "data", 20, 0)
	if err != nil || ch.Outcome != volume.Growing || w.volumes["data"].Volume.Expansion.Want != 20 || r.Volume.CapacityMin != 10 {
		t.Errorf("without a wait: %v, %+v, %+v", err, ch, r.Volume)
	}
	equal(t, "woken", w.woken, []string{"data"})
	w.carriedOut(volume.Outcome{Capacity: 24})
	r, ch, err = w.service().Expand(t.Context(), "data", 20, time.Minute)
	if err != nil || ch.Outcome != volume.Grown || r.Volume.Capacity != 24 || r.Volume.CapacityMin != 20 || ch.Fields[0] != "capacity: unknown → 24B" {
		t.Errorf("once more, to wait: %v, %+v, %+v", err, ch, r.Volume)
	}
	for _, size := range []int64{20, 22, 24} {
		if _, ch, err = w.service().Expand(t.Context(), "data", size, time.Minute); err != nil || ch.Outcome != volume.Unchanged {
			t.Errorf("to %d, which it has: %v, %+v", size, err, ch)
		}
	}
	equal(t, "events", w.events, []string{"expand-begun data: expanding to 20B"})
	// Expand itself makes no call, because the queue makes the calls.
	equal(t, "calls", len(w.calls), 0)
}

// TestExpandWithdrawn checks that a user can cancel an expansion while the plugin is down.
func TestExpandWithdrawn(t *testing.T) {
	w := sized(t)
	if _, _, err := w.service().Expand(t.Context(), "data", 20, 0); err != nil {
		t.Fatal(err)
	}
	w.await = volume.Errorf(volume.ErrPluginUnavailable, "it is down")
	r, ch, err := w.service().WithdrawExpansion(t.Context(), "data")
	if err != nil || ch.Outcome != volume.GivenUp || r.Volume.Expansion != (volume.Expansion{}) || w.volumes["data"].Volume.Expansion != (volume.Expansion{}) {
		t.Errorf("%v, %+v, %+v", err, ch, r.Volume)
	}
	if _, ch, err = w.service().WithdrawExpansion(t.Context(), "data"); err != nil || ch.Outcome != volume.Unchanged {
		t.Errorf("again: %v, %+v", err, ch)
	}
	_, _, err = w.service().WithdrawExpansion(t.Context(), "nosuch")
	want(t, "unknown", err, volume.ErrNotFound, `no volume "nosuch"`)
	equal(t, "events", w.events, []string{"expand-begun data: expanding to 20B", "expand-withdrawn data: expansion: 20B → none"})
	equal(t, "woken", w.woken, []string{"data", "data"})
}

func TestExpandRefused(t *testing.T) {
	w := sized(t)
	expand := func(size int64) error {
		_, _, err := w.service().Expand(t.Context(), "data", size, time.Minute)
		return err
	}
	want(t, "smaller", expand(9), volume.ErrRefused, `volume "data" has 10B and cannot shrink to 9B`)
	_, _, err := w.service().Expand(t.Context(), "nosuch", 9, time.Minute)
	want(t, "unknown", err, volume.ErrNotFound, `no volume "nosuch"`)
	want(t, "no size", expand(0), volume.ErrInvalid, "0 bytes")

	r := w.volumes["data"]
	r.Volume.CapacityMax = 15
	w.volumes["data"] = r
	want(t, "more than capacity_max", expand(20), volume.ErrRefused, "may have 15B at most (capacity_max)", "raise capacity_max")
	r.Volume.CapacityMax, r.Volume.Provision = 0, volume.Deleting
	w.volumes["data"] = r
	want(t, "while deleted", expand(20), volume.ErrRefused, "deleting did not end")
	r.Volume.Provision = volume.Provisioned
	w.volumes["data"] = r

	w.view.Info.Caps.Expand, w.view.Info.Caps.NodeExpand = false, false
	want(t, "not by this plugin", expand(20), volume.ErrRefused, `plugin "ebs" cannot expand volumes`)
	w.view.Info.Caps.Expand = true
	w.await = volume.Errorf(volume.ErrPluginUnavailable, "it is down")
	want(t, "plugin down", expand(20), volume.ErrPluginUnavailable, "it is down")
	if got := w.volumes["data"].Volume.Expansion; got != (volume.Expansion{}) {
		t.Errorf("an intent was left: %+v", got)
	}
}

// TestExpandOffline checks a plugin that expands only unused volumes. The agent must not ask it to
// expand a volume that is in use.
func TestExpandOffline(t *testing.T) {
	w := sized(t)
	w.view.Info.Caps.Offline = true
	w.claim(t, "data")
	_, _, err := w.service().Expand(t.Context(), "data", 20, time.Minute)
	want(t, "claimed", err, volume.ErrRefused, `plugin "ebs" expands volumes only while they are not in use, and volume "data" is claimed by "web" (mounted)`, "hint: volctl volume detach data --all")
	w.release(t, "data")
	_, _, err = w.service().Expand(t.Context(), "data", 20, time.Minute)
	want(t, "being detached", err, volume.ErrRefused, "still being detached", "volctl wait --volume data --for free")
	w.volumes["data"] = volume.Record{Volume: w.volumes["data"].Volume}
	if _, _, err = w.service().Expand(t.Context(), "data", 20, 0); err != nil || !w.volumes["data"].Volume.Expansion.Offline {
		t.Errorf("free: %v, %+v", err, w.volumes["data"].Volume.Expansion)
	}
}

// TestExpandFails checks that a final error of the plugin ends the expansion and deletes the
// intent.
func TestExpandFails(t *testing.T) {
	for code, tt := range map[string]struct {
		kind  error
		retry volume.Retry
	}{
		"OutOfRange":         {volume.ErrInvalid, volume.RetryChange},
		"InvalidArgument":    {volume.ErrInvalid, volume.RetryChange},
		"Unimplemented":      {volume.ErrRefused, volume.RetryNever},
		"FailedPrecondition": {volume.ErrRefused, volume.RetryNever},
		"PermissionDenied":   {nil, volume.RetryChange},
	} {
		w := sized(t)
		ce := made(code, tt.retry, true)
		ce.Message = "16 bytes at most"
		w.carriedOut(volume.Outcome{Err: ce})
		_, _, err := w.service().Expand(t.Context(), "data", 20, time.Minute)
		want(t, code, err, tt.kind, `plugin "ebs" does not expand volume "data" to 20B: 16 bytes at most`)
		if v := w.volumes["data"].Volume; v.Expansion.Want != 0 || v.CapacityMin != 10 || v.Capacity != 0 {
			t.Errorf("%s: left is %+v", code, v)
		}
		w.carriedOut(volume.Outcome{Capacity: 16})
		if _, _, err := w.service().Expand(t.Context(), "data", 16, time.Minute); err != nil {
			t.Errorf("%s: then one that is right: %v", code, err)
		}
	}
}

// TestExpandTimesOut checks the error after the wait has ended. It reports the current step and
// says that the agent continues the expansion.
func TestExpandTimesOut(t *testing.T) {
	w := sized(t)
	w.attempt = &volume.Attempt{Action: volume.Action{Kind: call.ControllerExpand}, Err: made("DeadlineExceeded", volume.RetryBackoff, false), Tries: 2}
	_, _, err := w.service().Expand(t.Context(), "data", 20, time.Millisecond)
	want(t, "timeout", err, volume.ErrTimeout, `volume "data" was not expanded to 20B within 1ms; the agent continues`,
		"DeadlineExceeded", "unknown whether that had an effect", "hint: to wait for it, repeat the command")
	w.attempt = &volume.Attempt{Action: volume.Action{Kind: volume.Wait, Cause: volume.CausePlugin, Reason: "no controller"}}
	_, _, err = w.service().Expand(t.Context(), "data", 20, time.Millisecond)
	want(t, "no plugin", err, volume.ErrPluginUnavailable, "no controller")
	if w.volumes["data"].Volume.Expansion.Want != 20 {
		t.Error("the intent is gone")
	}
}

// TestRegisterExpands checks that a volume file with a larger capacity_min expands the volume, as
// the expand command does.
func TestRegisterExpands(t *testing.T) {
	w := sized(t)
	file := existing()
	file.CapacityMin = 20
	r, ch, err := w.service().Register(t.Context(), file, true)
	if err != nil || ch.Outcome != volume.Updated || ch.Fields[0] != "capacity_min: 10B → 20B" || r.Volume.CapacityMin != 20 || w.volumes["data"].Volume.Expansion.Want != 0 {
		t.Errorf("dry: %v, %+v", err, ch)
	}
	w.carriedOut(volume.Outcome{Capacity: 20})
	r, ch, err = w.service().Register(t.Context(), file, false)
	if err != nil || ch.Fields[0] != "capacity_min: 10B → 20B" || r.Volume.CapacityMin != 20 || r.Volume.Capacity != 20 {
		t.Errorf("%v, %+v, %+v", err, ch, r.Volume)
	}
	if _, ch, err := w.service().Register(t.Context(), file, false); err != nil || ch.Outcome != volume.Unchanged {
		t.Errorf("again: %v, %+v", err, ch)
	}
	file.CapacityMin = 15
	if r, ch, err := w.service().Register(t.Context(), file, false); err != nil || ch.Outcome != volume.Unchanged || r.Volume.CapacityMin != 20 {
		t.Errorf("smaller, which it has: %v, %+v, %+v", err, ch, r.Volume)
	}

	file.CapacityMin = 30
	w.carriedOut(volume.Outcome{Err: made("OutOfRange", volume.RetryChange, true)})
	_, _, err = w.service().Register(t.Context(), file, false)
	want(t, "too large", err, volume.ErrInvalid, `to 30B: no`)
	if v := w.volumes["data"].Volume; v.CapacityMin != 20 || v.Expansion.Want != 0 {
		t.Errorf("left is %+v", v)
	}
	w.view.Info.Caps.Expand, w.view.Info.Caps.NodeExpand = false, false
	for _, dry := range []bool{true, false} {
		_, _, err = w.service().Register(t.Context(), file, dry)
		want(t, "not by this plugin", err, volume.ErrRefused, "cannot expand volumes")
	}
}
