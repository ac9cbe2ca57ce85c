package provision_test

import (
	"context"
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// mutable returns a world with one volume whose parameter iops is 100.
func mutable(t *testing.T) *world {
	t.Helper()
	w := newWorld()
	w.view.Info.Caps.Modify = true
	v := spec()
	v.Mutable = map[string]string{"iops": "100"}
	r, _, err := w.service().Create(t.Context(), v, false)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "created with", r.Volume.Mutable, v.Mutable)
	w.calls, w.events = nil, nil
	return w
}

func set(pairs ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

func TestModify(t *testing.T) {
	w := mutable(t)
	w.claim(t, "data") // a modify also works while the volume is in use
	for _, tt := range []struct {
		asked   map[string]string
		outcome string
		change  string
		now     map[string]string
	}{
		{set("iops", "100"), volume.Unchanged, "", set("iops", "100")},
		{set("iops", "200"), volume.Modified, `mutable_parameters: {"iops":"100"} → {"iops":"200"}`, set("iops", "200")},
		{set("tier", "fast"), volume.Modified, `mutable_parameters: {"iops":"200"} → {"iops":"200","tier":"fast"}`, set("iops", "200", "tier", "fast")},
		{set("iops", "200", "tier", ""), volume.Modified, `mutable_parameters: {"iops":"200","tier":"fast"} → {"iops":"200","tier":""}`, set("iops", "200", "tier", "")},
	} {
		r, ch, err := w.service().Modify(t.Context(), "data", tt.asked)
		if err != nil || ch.Outcome != tt.outcome || len(ch.Fields) > 0 && ch.Fields[0] != tt.change || len(r.Volume.Modifying) > 0 {
			t.Errorf("%v: %v, %+v, %+v", tt.asked, err, ch, r.Volume)
		}
		equal(t, "stored", w.volumes["data"].Volume.Mutable, tt.now)
	}
	equal(t, "calls", w.calls, []string{"modify vol-1 map[iops:200]", "modify vol-1 map[tier:fast]", "modify vol-1 map[tier:]"})
	equal(t, "the first event", w.events[0], `modified data: mutable_parameters: {"iops":"100"} → {"iops":"200"}`)
}

func TestModifyRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*world)
		asked  map[string]string
		kind   error
		words  string
	}{
		{"nothing", nil, nil, volume.ErrInvalid, "no parameter to modify is given"},
		{"no name", nil, set("", "x"), volume.ErrInvalid, "has no name"},
		{"no volume", func(w *world) { delete(w.volumes, "data") }, set("iops", "1"), volume.ErrNotFound, `no volume "data"`},
		{"it cannot", func(w *world) { w.view.Info.Caps.Modify = false }, set("iops", "1"), volume.ErrRefused, `plugin "ebs" cannot modify volumes`},
		{"the plugin is down", func(w *world) { w.await = volume.ErrPluginUnavailable }, set("iops", "1"), volume.ErrPluginUnavailable, ""},
		{"a secret cannot be read", func(w *world) { w.secrets = errors.New("no such file") }, set("iops", "1"), nil, "no such file"},
		{"the intent cannot be written", func(w *world) { w.failAt = w.updates + 1 }, set("iops", "1"), errDisk, ""},
		{"it is being deleted", func(w *world) {
			r := w.volumes["data"]
			r.Volume.Provision = volume.Deleting
			w.volumes["data"] = r
		}, set("iops", "1"), volume.ErrRefused, "deleting has not finished"},
	} {
		w := mutable(t)
		if tt.change != nil {
			tt.change(w)
		}
		_, _, err := w.service().Modify(t.Context(), "data", tt.asked)
		want(t, tt.name, err, tt.kind, tt.words)
		if v := w.volumes["data"].Volume; len(w.calls) > 0 || v.Modifying != nil {
			t.Errorf("%s: calls %q, left %+v", tt.name, w.calls, v)
		}
	}
}

// TestModifyFails checks that the values stay unchanged if the plugin refuses a modify. If the
// plugin does not answer, the values are unknown until the plugin answers a repeated modify.
func TestModifyFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		open  bool
		kind  error
		words []string
	}{
		{"bad arguments", made("InvalidArgument", volume.RetryChange, true), false, volume.ErrInvalid, []string{`plugin "ebs" refuses the request: no`}},
		{"in use", made("FailedPrecondition", volume.RetryBackoff, true), false, volume.ErrRefused, []string{"refuses the request: no"}},
		{"it is gone", made("NotFound", volume.RetryBackoff, true), false, nil, []string{"NotFound"}},
		{"a deadline", made("DeadlineExceeded", volume.RetryBackoff, false), true, volume.ErrTimeout, []string{"it is unknown", "hint: repeat the modify: volctl volume modify data iops=200"}},
		{"a plain Go error", made("Unknown", volume.RetryBackoff, true), true, nil, []string{"it is unknown"}},
		{"another call is pending", made("Aborted", volume.RetryBackoff, true), true, nil, []string{"it is unknown"}},
	} {
		w := mutable(t)
		w.modify = func(call.ModifyRequest) error { return tt.err }
		_, _, err := w.service().Modify(t.Context(), "data", set("iops", "200"))
		want(t, tt.name, err, tt.kind, tt.words...)
		v := w.volumes["data"].Volume
		equal(t, tt.name+": in force", v.Mutable, set("iops", "100"))
		if (len(v.Modifying) > 0) != tt.open {
			t.Errorf("%s: in doubt: %v, want %t", tt.name, v.Modifying, tt.open)
		}
		if !tt.open {
			continue
		}
		notes := volume.Explain(w.volumes["data"], volume.Observed{}, nil).Notes
		equal(t, tt.name+": notes", notes, []string{"it is unknown whether modifying iops=200 had an effect; to continue: volctl volume modify data iops=200"})
		// A refusal of the second modify proves nothing about the first modify. It is also unknown
		// whether the old value is still in effect.
		w.modify = func(call.ModifyRequest) error { return made("InvalidArgument", volume.RetryChange, true) }
		_, _, err = w.service().Modify(t.Context(), "data", set("iops", "100"))
		want(t, tt.name+", then a refusal", err, volume.ErrInvalid)
		equal(t, tt.name+": still in doubt", w.volumes["data"].Volume.Modifying, set("iops", "200"))
		w.modify = nil
		if _, ch, err := w.service().Modify(t.Context(), "data", set("iops", "200")); err != nil || ch.Outcome != volume.Modified {
			t.Errorf("%s: again: %v, %+v", tt.name, err, ch)
		}
		v = w.volumes["data"].Volume
		equal(t, tt.name+": settled", v.Mutable, set("iops", "200"))
		if v.Modifying != nil {
			t.Errorf("%s: still in doubt: %v", tt.name, v.Modifying)
		}
	}
}

// TestModifyResumes checks that the intent remains if the agent dies after the call and before it
// stores the result.
func TestModifyResumes(t *testing.T) {
	w := mutable(t)
	w.failAt = w.updates + 2
	_, _, err := w.service().Modify(t.Context(), "data", set("iops", "200"))
	want(t, "the first", err, errDisk)
	v := w.volumes["data"].Volume
	equal(t, "left", []any{v.Mutable, v.Modifying}, []any{set("iops", "100"), set("iops", "200")})
	if _, _, err := w.service().Modify(t.Context(), "data", set("iops", "200")); err != nil {
		t.Error(err)
	}
	equal(t, "calls", w.calls, []string{"modify vol-1 map[iops:200]", "modify vol-1 map[iops:200]"})

	// The agent stores the result even if the context of the caller ends during the call.
	ctx, cancel := context.WithCancel(t.Context())
	w.modify = func(call.ModifyRequest) error { cancel(); return nil }
	if _, _, err := w.service().Modify(ctx, "data", set("iops", "300")); err != nil {
		t.Error(err)
	}
	equal(t, "stored", w.volumes["data"].Volume.Mutable, set("iops", "300"))
}

// TestModifiedMeanwhile checks a modify whose volume id belongs to another volume when the plugin
// answers.
func TestModifiedMeanwhile(t *testing.T) {
	w := mutable(t)
	w.modify = func(call.ModifyRequest) error {
		r := w.volumes["data"]
		r.Volume.ExternalID = "vol-7"
		w.volumes["data"] = r
		return nil
	}
	_, _, err := w.service().Modify(t.Context(), "data", set("iops", "200"))
	want(t, "modify", err, volume.ErrRefused, "was deregistered meanwhile")
	equal(t, "the other", w.volumes["data"].Volume.Mutable, set("iops", "100"))
}

// TestRegisterModifies checks that a register with a changed file also modifies the volume.
// Parameters that the file omits keep their values.
func TestRegisterModifies(t *testing.T) {
	w := mutable(t)
	file := spec()
	file.Reclaim = "delete"
	file.Mutable = set("tier", "fast")
	again := func(dry bool) (volume.Change, error) {
		_, ch, err := w.service().Register(t.Context(), file, dry)
		return ch, err
	}
	both := []string{`reclaim: none → "delete"`, `mutable_parameters: {"iops":"100"} → {"iops":"100","tier":"fast"}`}
	if ch, err := again(true); err != nil || len(w.calls) > 0 {
		t.Errorf("dry: %v, calls %q", err, w.calls)
	} else {
		equal(t, "would change", ch.Fields, both)
	}
	// The plugin refuses the modify, so the agent applies no other part of the file.
	w.modify = func(call.ModifyRequest) error { return made("InvalidArgument", volume.RetryChange, true) }
	_, err := again(false)
	want(t, "refused", err, volume.ErrInvalid, "refuses the request: no")
	if v := w.volumes["data"].Volume; v.Reclaim != "" || v.Modifying != nil {
		t.Errorf("left: %+v", v)
	}
	w.modify = nil
	ch, err := again(false)
	if err != nil || ch.Outcome != volume.Updated {
		t.Errorf("%v, %+v", err, ch)
	}
	equal(t, "changed", ch.Fields, both)
	v := w.volumes["data"].Volume
	equal(t, "stored", []any{v.Reclaim, v.Mutable}, []any{"delete", set("iops", "100", "tier", "fast")})
	if ch, err := again(false); err != nil || ch.Outcome != volume.Unchanged {
		t.Errorf("the same again: %v, %+v", err, ch)
	}
	file.Mutable = nil
	if ch, err := again(false); err != nil || ch.Outcome != volume.Unchanged {
		t.Errorf("left out: %v, %+v", err, ch)
	}
	w.view.Info.Caps.Modify = false
	file.Mutable = set("tier", "slow")
	for _, dry := range []bool{true, false} {
		_, err := again(dry)
		want(t, "a plugin that cannot", err, volume.ErrRefused, `plugin "ebs" cannot modify volumes`)
	}
}

// TestCreateBeyondThePlugin checks that the agent refuses a request that the plugin cannot fulfil,
// before it stores an intent.
func TestCreateBeyondThePlugin(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*volume.Volume)
		words  string
	}{
		"mutable parameters": {func(v *volume.Volume) { v.Mutable = set("iops", "1") }, `plugin "ebs" cannot modify volumes`},
		"a topology":         {func(v *volume.Volume) { v.Topology.Required = []map[string]string{{"zone": "a"}} }, `plugin "ebs" does not support topology`},
	} {
		w, v := newWorld(), spec()
		tt.change(&v)
		for _, dry := range []bool{true, false} {
			_, _, err := w.service().Create(t.Context(), v, dry)
			want(t, name, err, volume.ErrRefused, tt.words)
		}
		if len(w.calls)+len(w.volumes)+w.updates != 0 {
			t.Errorf("%s: calls %q, left %+v", name, w.calls, w.volumes)
		}
	}
}

// TestCreateWithoutSecret checks that a create with an unreadable secret stores nothing. The intent
// of an earlier create stays.
func TestCreateWithoutSecret(t *testing.T) {
	w := newWorld()
	w.secrets = errors.New("no such file")
	_, _, err := w.service().Create(t.Context(), spec(), false)
	want(t, "create", err, nil, "no such file")
	equal(t, "updates", w.updates, 0)
	w.secrets, w.failAt = nil, 2
	_, _, err = w.service().Create(t.Context(), spec(), false)
	want(t, "cut short", err, errDisk)
	w.secrets = errors.New("no such file")
	_, _, err = w.service().Create(t.Context(), spec(), false)
	want(t, "again", err, nil, "no such file")
	if got := w.volumes["data"].Volume.Provision; got != volume.Provisioning {
		t.Errorf("the intent is %q", got)
	}
}
