package provision_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestRegister(t *testing.T) {
	w := newWorld()
	r, ch, err := w.service().Register(t.Context(), existing(), false)
	if v := r.Volume; err != nil || ch.Outcome != volume.Registered || v.Driver != "ebs.csi" || v.Created || v.Name != "data" || v.RegisteredAt.IsZero() {
		t.Errorf("%v, %+v, %+v", err, ch, v)
	}
	if _, ch, err := w.service().Register(t.Context(), existing(), false); err != nil || ch.Outcome != volume.Unchanged {
		t.Errorf("again: %v, %+v", err, ch)
	}
	changed := existing()
	changed.Context = map[string]string{"a": "b"}
	if _, ch, err := w.service().Register(t.Context(), changed, false); err != nil || ch.Outcome != volume.Updated || w.volumes["data"].Volume.Context["a"] != "b" {
		t.Errorf("changed: %v, %+v", err, ch)
	}
	equal(t, "woken", w.woken, []string{volume.LeftoverKey("ebs.csi", "vol-9"), "data", volume.LeftoverKey("ebs.csi", "vol-9"), "data"})
	_, _, err = w.service().Register(t.Context(), spec(), false)
	if err != nil {
		t.Errorf("without its external id, which is known: %v", err)
	}
	other := existing()
	other.ID = "other"
	_, _, err = w.service().Register(t.Context(), other, false)
	want(t, "a second id", err, volume.ErrRefused, `external_id "vol-9" of driver ebs.csi is already registered as volume "data"`, "hint: volctl volume status data")
	fresh := spec()
	fresh.ID = "fresh"
	_, _, err = w.service().Register(t.Context(), fresh, false)
	want(t, "no external id", err, volume.ErrInvalid, "has no external_id")
	other.PluginID = "nfs"
	_, _, err = w.service().Register(t.Context(), other, false)
	want(t, "no plugin", err, volume.ErrNotFound, `no plugin "nfs"`)
}

// TestRegisterUnderTest checks that the agent refuses to register a volume that a plugin test uses.
// When that test ended, it would unmount the volume while claims still use it.
func TestRegisterUnderTest(t *testing.T) {
	w := newWorld()
	w.tested = key("ebs.csi", "vol-9")
	for _, dry := range []bool{true, false} {
		_, _, err := w.service().Register(t.Context(), existing(), dry)
		want(t, "in a test", err, volume.ErrRefused, `external_id "vol-9" of driver ebs.csi is in a test of plugin "ebs"`)
	}
	w.tested = ""
	w.mustRegister(t, existing())
}

// TestRegisterValidates checks that Register asks the plugin whether the volume exists. Register
// also succeeds if the plugin cannot answer.
func TestRegisterValidates(t *testing.T) {
	for _, tt := range []struct {
		name  string
		down  bool
		err   error
		kind  error
		words string
	}{
		{"it is there", false, nil, nil, ""},
		{"the plugin is down", true, nil, nil, ""},
		{"it is not there", false, made("NotFound", volume.RetryBackoff, true), volume.ErrNotFound, `has no volume "vol-9"`},
		{"not with these capabilities", false, made("InvalidArgument", volume.RetryChange, true), volume.ErrRefused, "does not offer"},
		{"the answer is not the question", false, made(volume.CodeUnverified, volume.RetryChange, true), volume.ErrRefused, "does not offer"},
		{"it cannot tell", false, made("Unimplemented", volume.RetryNever, true), nil, ""},
		{"it does not answer", false, made("DeadlineExceeded", volume.RetryBackoff, false), nil, ""},
	} {
		w := newWorld()
		w.validate, w.view.Ready = tt.err, !tt.down
		_, _, err := w.service().Register(t.Context(), existing(), false)
		if tt.kind != nil {
			want(t, tt.name, err, tt.kind, tt.words)
		} else if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if _, there := w.volumes["data"]; there != (tt.kind == nil) {
			t.Errorf("%s: registered: %t", tt.name, there)
		}
	}
}

func TestDeregister(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, existing())
	w.claim(t, "data")
	_, err := w.service().Deregister(t.Context(), "data", false)
	want(t, "claimed", err, volume.ErrRefused, `is claimed by "web" (mounted)`, "hint: volctl volume detach data --all")
	_, err = w.service().Deregister(t.Context(), "data", true)
	want(t, "claimed, with force", err, volume.ErrRefused, `is claimed by "web" (mounted), which is alive`)
	w.release(t, "data")
	_, err = w.service().Deregister(t.Context(), "data", false)
	want(t, "being detached", err, volume.ErrRefused, `"web" (unpublishing)`, "still being detached")

	r := w.volumes["data"]
	r.Claims, r.Node.Watches = nil, nil
	w.volumes["data"] = r
	_, err = w.service().Deregister(t.Context(), "data", false)
	want(t, "still staged", err, volume.ErrRefused, "still being taken off this host")
	w.volumes["data"] = volume.Record{Volume: r.Volume}
	left, err := w.service().Deregister(t.Context(), "data", false)
	if err != nil || len(left) != 0 || len(w.volumes)+len(w.leftovers) != 0 {
		t.Errorf("free: %v, %q, left %+v, %+v", err, left, w.volumes, w.leftovers)
	}
	_, err = w.service().Deregister(t.Context(), "data", true)
	want(t, "unknown", err, volume.ErrNotFound, `no volume "data"`)
	equal(t, "forgotten", w.forgot, []string{"data"})
	if len(w.calls) != 1 || !strings.HasPrefix(w.calls[0], "validate") {
		t.Errorf("calls %q", w.calls)
	}
}

// flags is a fake of Guards. It keeps the guarded directories in a map. It searches the records for
// other volumes that name a directory.
type flags struct {
	w     *world
	on    map[string]bool
	after func() // called once, at the end of the first call of Unguard
}

func (f *flags) Unguard(g volume.GuardedDir, id string) error {
	dir, other := g.Path, false
	for _, r := range f.w.volumes {
		other = other || r.Volume.ID != id && slices.Contains(r.Guards, dir)
	}
	if !other {
		delete(f.on, dir)
	}
	if after := f.after; after != nil {
		f.after = nil
		after()
	}
	return nil
}

// TestDeregisterBoth deregisters two volumes that name the same directory at the same time, and
// checks that the directory does not stay guarded.
func TestDeregisterBoth(t *testing.T) {
	w := newWorld()
	for id, external := range map[string]string{"data": "vol-9", "more": "vol-8"} {
		v := existing()
		v.ID, v.ExternalID = id, external
		w.mustRegister(t, v)
		r := w.volumes[id]
		r.Guards = []string{"/srv"}
		w.volumes[id] = r
	}
	f := &flags{w: w, on: map[string]bool{"/srv": true}}
	o := w.options()
	o.Guards = f
	s := provision.New(o)
	f.after = func() { // at this moment, the agent still has the records of both volumes
		if _, err := s.Deregister(t.Context(), "more", false); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Deregister(t.Context(), "data", false); err != nil {
		t.Error(err)
	}
	if len(w.volumes) != 0 || f.on["/srv"] {
		t.Errorf("left %+v, and /srv refuses writes: %t", w.volumes, f.on["/srv"])
	}
}

// TestLeftover checks that a forced deregister reports the leftovers and stores them in a leftover
// record. When the same storage is registered again, the leftover record gets the plugin and the
// secrets of the new registration.
func TestLeftover(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, existing())
	w.claim(t, "data")
	w.release(t, "data")
	left, err := w.service().Deregister(t.Context(), "data", true)
	if err != nil || strings.Join(left, "; ") != `/t may still be mounted (published for "web"); /s may still be mounted (staged)` {
		t.Errorf("%v, %q", err, left)
	}
	leftover := w.leftovers[key("ebs.csi", "vol-9")]
	if len(w.volumes) != 0 || len(w.leftovers) != 1 || !leftover.Leftover || !slices.Contains(w.woken, leftover.Key()) {
		t.Errorf("volumes %+v, leftovers %+v, woken %q", w.volumes, w.leftovers, w.woken)
	}
	_, err = w.service().Deregister(t.Context(), "data", true)
	want(t, "deregistered again", err, volume.ErrNotFound, "was already deregistered by force", "/t may still be mounted", "-force --forget")

	again := existing()
	again.ID = "renamed"
	again.Secrets = map[string]call.SecretRef{"key": {Env: "NEW"}}
	w.woken = nil
	if r := w.mustRegister(t, again); r.Held() {
		t.Errorf("registered again: %+v", r)
	}
	if d := w.leftovers[key("ebs.csi", "vol-9")]; d.Volume.Secrets["key"].Env != "NEW" || len(d.Claims) != 1 {
		t.Errorf("owed: %+v", d)
	}
	equal(t, "woken", w.woken, []string{leftover.Key(), "renamed"})
	err = w.service().Delete(t.Context(), "renamed", "renamed")
	want(t, "deleted under what is left", err, volume.ErrRefused, `the forced deregister of "data"`, "/t may still be mounted")

	// A second forced deregister keeps the first leftover record, because it already contains all
	// leftovers.
	if _, err := w.service().Deregister(t.Context(), "renamed", true); err != nil || len(w.leftovers[key("ebs.csi", "vol-9")].Claims) != 1 {
		t.Errorf("by force once more: %v, %+v", err, w.leftovers)
	}
	left, err = w.service().Forget(t.Context(), "data")
	if err != nil || len(left) != 2 || len(w.leftovers) != 0 {
		t.Errorf("forgotten: %v, %q, %+v", err, left, w.leftovers)
	}
	_, err = w.service().Forget(t.Context(), "data")
	want(t, "forgotten again", err, volume.ErrNotFound, `no volume "data"`)
}

// TestLeftoverBeforeCreate checks a create that returns the storage of a leftover record. The agent
// must undo the leftovers before it mounts the new volume.
func TestLeftoverBeforeCreate(t *testing.T) {
	w := newWorld()
	w.mustCreate(t)
	w.claim(t, "data")
	w.release(t, "data")
	if _, err := w.service().Deregister(t.Context(), "data", true); err != nil {
		t.Fatal(err)
	}
	w.woken = nil
	if r := w.mustCreate(t); r.Held() || len(w.leftovers) != 1 {
		t.Errorf("created again: %+v, owed %+v", r, w.leftovers)
	}
	equal(t, "woken", w.woken, []string{volume.LeftoverKey("ebs.csi", "vol-1"), "data"})
}

// TestForgetWakesWaiting checks a volume that waits until the leftovers of its storage are undone.
// When a user forgets these leftovers, the queue must wake the volume.
func TestForgetWakesWaiting(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, existing())
	w.claim(t, "data")
	w.release(t, "data")
	if _, err := w.service().Deregister(t.Context(), "data", true); err != nil {
		t.Fatal(err)
	}
	again := existing()
	again.ID = "renamed"
	w.mustRegister(t, again)
	w.woken = nil
	if _, err := w.service().Forget(t.Context(), "data"); err != nil || !slices.Contains(w.woken, "renamed") {
		t.Errorf("%v, woken %q", err, w.woken)
	}
}

// TestForget checks that Forget deletes the volume together with its leftover record. It refuses a
// volume that has a live claim.
func TestForget(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, existing())
	w.claim(t, "data")
	_, err := w.service().Forget(t.Context(), "data")
	want(t, "claimed", err, volume.ErrRefused, "which is alive")
	w.release(t, "data")
	left, err := w.service().Forget(t.Context(), "data")
	if err != nil || len(left) != 2 || len(w.volumes)+len(w.leftovers) != 0 {
		t.Errorf("%v, %q, left %+v, %+v", err, left, w.volumes, w.leftovers)
	}
}

// TestForceOnIntent checks a forced deregister after a create whose outcome is unknown. The
// deregister must report that the plugin may have a volume.
func TestForceOnIntent(t *testing.T) {
	w := newWorld()
	w.create = func(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		return call.CreateVolumeResult{}, made("DeadlineExceeded", volume.RetryBackoff, false)
	}
	if _, _, err := w.service().Create(t.Context(), spec(), false); err == nil {
		t.Fatal("it did not fail")
	}
	_, err := w.service().Deregister(t.Context(), "data", false)
	want(t, "without force", err, volume.ErrRefused, "creating has not finished", "-force")
	err = w.service().Delete(t.Context(), "data", "")
	want(t, "delete", err, volume.ErrRefused, "has not finished")
	left, err := w.service().Deregister(t.Context(), "data", true)
	if err != nil || len(left) != 1 || left[0] != `plugin "ebs" may have made a volume named "data"` {
		t.Errorf("%v, %q", err, left)
	}
}

func TestDelete(t *testing.T) {
	w := newWorld()
	w.mustCreate(t)
	w.claim(t, "data")
	want(t, "claimed", w.service().Delete(t.Context(), "data", ""), volume.ErrRefused, `is claimed by "web"`)
	w.release(t, "data")
	want(t, "being detached", w.service().Delete(t.Context(), "data", ""), volume.ErrRefused, "still being detached")
	w.volumes["data"] = volume.Record{Volume: w.volumes["data"].Volume}
	if err := w.service().Delete(t.Context(), "data", ""); err != nil {
		t.Error(err)
	}
	want(t, "gone", w.service().Delete(t.Context(), "data", ""), volume.ErrNotFound, `no volume "data"`)
	equal(t, "calls", w.calls, []string{"create data", "delete vol-1"})
	equal(t, "left", len(w.volumes), 0)
	equal(t, "forgotten", w.forgot, []string{"data"})
}

// TestDeleteRegistered checks that the agent destroys a volume that it did not create only if the
// caller repeats the id.
func TestDeleteRegistered(t *testing.T) {
	w := newWorld()
	w.mustRegister(t, existing())
	for _, confirm := range []string{"", "yes", "Data", "vol-9"} {
		err := w.service().Delete(t.Context(), "data", confirm)
		want(t, confirm, err, volume.ErrRefused, "this agent did not create", "--confirm=data")
	}
	w.view.Info.Caps.CreateDelete = false
	want(t, "cannot", w.service().Delete(t.Context(), "data", "data"), volume.ErrRefused, "cannot delete volumes")
	w.view.Info.Caps.CreateDelete = true
	if err := w.service().Delete(t.Context(), "data", "data"); err != nil {
		t.Error(err)
	}
	equal(t, "calls", w.calls[len(w.calls)-1], "delete vol-9")
}

func TestDeleteFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		kept volume.Provision
		kind error
		word string
	}{
		{"a deadline", made("DeadlineExceeded", volume.RetryBackoff, false), volume.Deleting, volume.ErrTimeout, "whether the data"},
		{"an internal error", made("Internal", volume.RetryBackoff, true), volume.Deleting, nil, "it is unknown"},
		{"in use, or with snapshots", made("FailedPrecondition", volume.RetryBackoff, true), volume.Provisioned, volume.ErrRefused, `plugin "ebs" refuses the request: no`},
	} {
		w := newWorld()
		w.mustCreate(t)
		w.destroy = func(call.DeleteVolumeRequest) error { return tt.err }
		want(t, tt.name, w.service().Delete(t.Context(), "data", ""), tt.kind, tt.word)
		if got := w.volumes["data"].Volume.Provision; got != tt.kept {
			t.Errorf("%s: it is %q, want %q", tt.name, got, tt.kept)
		}
		_, _, err := w.service().Create(t.Context(), spec(), false)
		if tt.kept == volume.Deleting {
			want(t, tt.name+", then created again", err, volume.ErrRefused, "deleting")
		} else if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		w.destroy = func(call.DeleteVolumeRequest) error { return nil }
		if err := w.service().Delete(t.Context(), "data", ""); err != nil || len(w.volumes) != 0 {
			t.Errorf("%s: again: %v, left %+v", tt.name, err, w.volumes)
		}
	}
}

func TestStats(t *testing.T) {
	w := newWorld()
	_, err := w.service().Stats(t.Context(), "data")
	want(t, "unknown", err, volume.ErrNotFound)
	w.mustRegister(t, existing())
	_, err = w.service().Stats(t.Context(), "data")
	want(t, "not mounted", err, volume.ErrRefused, "is not mounted")
	w.claim(t, "data")
	if st, err := w.service().Stats(t.Context(), "data"); err != nil || st.Stats.Bytes.Total != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	equal(t, "call", w.calls[len(w.calls)-1], "stats vol-9 /t")
	w.view.Info.Caps.Stats = false
	_, err = w.service().Stats(t.Context(), "data")
	want(t, "cannot", err, volume.ErrRefused, "does not report the usage")
}

// TestRegisterDash checks that the agent refuses a new id that begins with "-". A volume that an
// earlier version of the agent stored under such an id can still be changed.
func TestRegisterDash(t *testing.T) {
	w := newWorld()
	dash := existing()
	dash.ID = "-rf"
	_, _, err := w.service().Register(t.Context(), dash, false)
	want(t, "registered", err, volume.ErrInvalid, `volume id "-rf" begins with "-"`)
	_, _, err = w.service().Create(t.Context(), dash, false)
	want(t, "created", err, volume.ErrInvalid, `volume id "-rf" begins with "-"`)

	w.mustRegister(t, existing())
	old := w.volumes["data"]
	old.Volume.ID = "-rf"
	w.volumes["-rf"] = old
	delete(w.volumes, "data")
	dash.Context = map[string]string{"a": "b"}
	if _, ch, err := w.service().Register(t.Context(), dash, false); err != nil || ch.Outcome != volume.Updated {
		t.Errorf("stored already: %v, %+v", err, ch)
	}
}
