package provision_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// given returns v with the secret "key" set to ref.
func given(v volume.Volume, ref call.SecretRef) volume.Volume {
	v.Secrets = map[string]call.SecretRef{"key": ref}
	return v
}

func literal(value string) call.SecretRef {
	return call.SecretRef{Literal: call.NewSecret(value)}
}

// TestLiteralIsSealed checks that the agent seals a literal value of a file before it stores the
// value. A second file with the same value changes nothing. A file with another value changes the
// volume.
func TestLiteralIsSealed(t *testing.T) {
	for what, do := range map[string]func(*world, call.SecretRef, bool) (volume.Change, error){
		"register": func(w *world, ref call.SecretRef, dry bool) (volume.Change, error) {
			_, ch, err := w.service().Register(t.Context(), given(existing(), ref), dry)
			return ch, err
		},
		"create": func(w *world, ref call.SecretRef, dry bool) (volume.Change, error) {
			_, ch, err := w.service().Create(t.Context(), given(spec(), ref), dry)
			// Create refuses an existing volume that differs, so register changes it.
			if errors.Is(err, volume.ErrRefused) {
				_, ch, err = w.service().Register(t.Context(), given(spec(), ref), dry)
			}
			return ch, err
		},
	} {
		w := newWorld()
		steps := []struct {
			ref     call.SecretRef
			dry     bool
			outcome string
			then    call.SecretRef
		}{
			{literal("one"), true, "", call.SecretRef{}},
			{literal("one"), false, "", sealed("data", "one")},
			{literal("one"), false, volume.Unchanged, sealed("data", "one")},
			{literal("two"), true, volume.Updated, sealed("data", "one")},
			{literal("two"), false, volume.Updated, sealed("data", "two")},
			{call.SecretRef{Keep: true}, false, volume.Unchanged, sealed("data", "two")},
			{call.SecretRef{Env: "KEY"}, false, volume.Updated, call.SecretRef{Env: "KEY"}},
			{literal("two"), false, volume.Updated, sealed("data", "two")},
		}
		for i, st := range steps {
			ch, err := do(w, st.ref, st.dry)
			if err != nil || st.outcome != "" && ch.Outcome != st.outcome {
				t.Errorf("%s, step %d: %+v, %v", what, i, ch, err)
			}
			if got := w.volumes["data"].Volume.Secrets["key"]; got != st.then {
				t.Errorf("%s, step %d: the record has %+v, want %+v", what, i, got, st.then)
			}
			if said := strings.Join(append(ch.Fields, w.events...), "\n"); strings.Contains(said, "eno") || strings.Contains(said, "owt") {
				t.Errorf("%s, step %d: what is sealed is told: %s", what, i, said)
			}
		}
	}
}

// TestLiteralOfResumedCreate checks that an interrupted create continues with the secret value of
// its first attempt.
func TestLiteralOfResumedCreate(t *testing.T) {
	w := newWorld()
	w.create = func(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		return call.CreateVolumeResult{}, made("DeadlineExceeded", volume.RetryBackoff, false)
	}
	_, _, err := w.service().Create(t.Context(), given(spec(), literal("one")), false)
	want(t, "cut short", err, volume.ErrTimeout)
	w.create = newWorld().create
	if _, _, err := w.service().Create(t.Context(), given(spec(), call.SecretRef{Keep: true}), false); err != nil {
		t.Fatal(err)
	}
	equal(t, "the record", w.volumes["data"].Volume.Secrets["key"], sealed("data", "one"))
}

// TestSecretRefused checks that Register refuses a secret with Keep set if no value is stored. If
// the agent cannot seal or read a secret, it changes nothing.
func TestSecretRefused(t *testing.T) {
	w := newWorld()
	_, _, err := w.service().Register(t.Context(), given(existing(), call.SecretRef{Keep: true}), false)
	want(t, "nothing to keep", err, volume.ErrRefused, `secret "key" of volume "data"`, "no sealed value", "hint: give the value")
	w.seal = errors.New("bad key")
	_, _, err = w.service().Register(t.Context(), given(existing(), literal("one")), false)
	want(t, "cannot be sealed", err, nil, "bad key")
	w.seal, w.secrets = nil, errors.New("no such file")
	for _, ready := range []bool{true, false} {
		w.view.Ready = ready
		for _, dry := range []bool{true, false} {
			_, _, err = w.service().Register(t.Context(), given(existing(), call.SecretRef{File: "/none"}), dry)
			want(t, "cannot be read", err, nil, "no such file")
		}
	}
	w.view.Ready = true
	if len(w.volumes) != 0 {
		t.Fatalf("a record was made: %+v", w.volumes)
	}
	w.secrets = nil
	w.mustRegister(t, given(existing(), call.SecretRef{Env: "KEY"}))
	w.secrets = errors.New("no such file")
	_, _, err = w.service().Register(t.Context(), given(existing(), call.SecretRef{File: "/none"}), false)
	want(t, "another that cannot be read", err, nil, "no such file")
	_, _, err = w.service().Register(t.Context(), given(existing(), call.SecretRef{Keep: true}), false)
	want(t, "a reference is not kept as sealed", err, volume.ErrRefused, "no sealed value")
	equal(t, "the record", w.volumes["data"].Volume.Secrets["key"], call.SecretRef{Env: "KEY"})
	other := given(existing(), call.SecretRef{Env: "KEY"})
	other.Reclaim = "delete"
	if _, ch, err := w.service().Register(t.Context(), other, false); err != nil || ch.Outcome != volume.Updated {
		t.Errorf("another field, with a secret that cannot be read now: %v, %+v", err, ch)
	}
	w.secrets = errors.New("no such file")
	want(t, "delete", w.service().Delete(t.Context(), "data", "data"), nil, "no such file")
	if p := w.volumes["data"].Volume.Provision; p != volume.Provisioned {
		t.Errorf("an intent to delete was left: %q", p)
	}
}

// TestSameSecretsWake checks a second register with the same secret references. It signals that the
// values behind the references have changed, so the queue retries waiting steps at once.
func TestSameSecretsWake(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, given(existing(), call.SecretRef{Env: "KEY"}))
	w.woken = nil
	w.mustRegister(t, given(existing(), call.SecretRef{Env: "KEY"}))
	equal(t, "woken", w.woken, []string{volume.LeftoverKey("ebs.csi", "vol-9"), "data"})
	w.woken = nil
	if _, _, err := w.service().Register(t.Context(), given(existing(), call.SecretRef{Env: "KEY"}), true); err != nil || len(w.woken) > 0 {
		t.Errorf("a dry run: %v, woke %v", err, w.woken)
	}
}

// TestLentSecretIsMoved checks that a register copies its secrets to the leftover record of the
// same storage. The agent must seal these secrets for the id of the leftover record.
func TestLentSecretIsMoved(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, given(existing(), literal("one")))
	w.claim(t, "data")
	w.release(t, "data")
	if _, err := w.service().Deregister(t.Context(), "data", true); err != nil {
		t.Fatal(err)
	}
	again := given(existing(), literal("two"))
	again.ID = "other"
	w.seal = errors.New("bad key")
	if _, _, err := w.service().Register(t.Context(), again, false); err == nil || len(w.volumes) != 0 {
		t.Errorf("registered as it cannot be lent: %v", err)
	}
	w.seal = nil
	w.mustRegister(t, again)
	equal(t, "the volume", w.volumes["other"].Volume.Secrets["key"], sealed("other", "two"))
	equal(t, "the leftover", w.leftovers[key("ebs.csi", "vol-9")].Volume.Secrets["key"], sealed("data", "two"))
	w.woken = nil
	again.Secrets = map[string]call.SecretRef{"key": literal("three")}
	w.mustRegister(t, again)
	equal(t, "the leftover, after a change", w.leftovers[key("ebs.csi", "vol-9")].Volume.Secrets["key"], sealed("data", "three"))
	equal(t, "woken", w.woken, []string{volume.LeftoverKey("ebs.csi", "vol-9"), "other"})
}
