package provision_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestCreate(t *testing.T) {
	w := newWorld()
	r, ch, err := w.service().Create(t.Context(), spec(), false)
	v := r.Volume
	if err != nil || ch.Outcome != volume.Created || v.ExternalID != "vol-1" || v.Driver != "ebs.csi" || v.Name != "data" || v.Capacity != 12 ||
		v.Context["k"] != "v" || !v.Created || v.Provision != volume.Provisioned || v.RegisteredAt.IsZero() {
		t.Errorf("%v, %+v, %+v", err, ch, v)
	}
	again, ch, err := w.service().Create(t.Context(), spec(), false)
	if err != nil || ch.Outcome != volume.Unchanged || again.Volume.ExternalID != "vol-1" {
		t.Errorf("the same again: %v, %+v, %+v", err, ch, again.Volume)
	}
	equal(t, "calls", w.calls, []string{"create data"})
	equal(t, "events", w.events, []string{`created data: created as "vol-1" of ebs.csi`})
}

// TestCreateChangesNoVolume checks that Create does not change an existing volume, even if the
// request differs from it.
func TestCreateChangesNoVolume(t *testing.T) {
	w := newWorld()
	made := spec()
	made.CapacityMin, made.MountOptions.MountFlags = 10, []string{"noatime"}
	made.Secrets = map[string]call.SecretRef{"key": literal("one")}
	if _, _, err := w.service().Create(t.Context(), made, false); err != nil {
		t.Fatal(err)
	}
	before, updates := w.volumes["data"], w.updates
	for name, tt := range map[string]struct {
		change func(*volume.Volume)
		words  string
	}{
		"a size":     {func(v *volume.Volume) { v.CapacityMin = 1 << 20 }, "capacity_min: 12B → 1MiB"},
		"no options": {func(v *volume.Volume) { v.MountOptions = call.MountOptions{} }, `mount_options: {"mount_flags":["noatime"]} → none`},
		"a reclaim":  {func(v *volume.Volume) { v.Reclaim = "delete" }, `reclaim: "retain" → "delete"`},
		"parameters": {func(v *volume.Volume) { v.Parameters = set("type", "io2") }, `parameters: {"type":"gp3"} → {"type":"io2"}`},
		"a secret":   {func(v *volume.Volume) { v.Secrets = map[string]call.SecretRef{"key": literal("two")} }, "sealed anew"},
		"no secrets": {func(v *volume.Volume) { v.Secrets = nil }, `secrets: {"key":{"sealed":true}} → none`},
		"several":    {func(v *volume.Volume) { v.Reclaim, v.Mutable = "delete", set("iops", "1") }, `mutable_parameters: none → {"iops":"1"}; reclaim: `},
		"capabilities": {func(v *volume.Volume) {
			v.Capabilities = v.Capabilities[:1:1]
			v.Capabilities[0].Access = call.MultiNodeMultiWriter
		}, "capabilities: "},
	} {
		request := made
		request.Capabilities = append([]call.Capability{}, made.Capabilities...)
		tt.change(&request)
		for _, dry := range []bool{true, false} {
			_, _, err := w.service().Create(t.Context(), request, dry)
			want(t, name, err, volume.ErrRefused, `volume "data" exists and differs from the request: `, tt.words, "volctl volume export data")
		}
		equal(t, name+": the record", w.volumes["data"], before)
	}
	for name, change := range map[string]func(*volume.Volume){
		"the same":             func(*volume.Volume) {},
		"a smaller size":       func(v *volume.Volume) { v.CapacityMin = 1 },
		"what it has":          func(v *volume.Volume) { v.CapacityMin, v.CapacityMax = 12, 0 },
		"no parameters":        func(v *volume.Volume) { v.Parameters = nil },
		"the default":          func(v *volume.Volume) { v.Reclaim = "retain" },
		"a kept secret":        func(v *volume.Volume) { v.Secrets = map[string]call.SecretRef{"key": {Keep: true}} },
		"no mutable parameter": func(v *volume.Volume) { v.Mutable = map[string]string{} },
	} {
		request := made
		change(&request)
		if _, ch, err := w.service().Create(t.Context(), request, false); err != nil || ch.Outcome != volume.Unchanged {
			t.Errorf("%s: %+v, %v", name, ch, err)
		}
	}
	equal(t, "updates", w.updates, updates)
	equal(t, "calls", w.calls, []string{"create data"})
}

// TestDryRun checks that a dry run stores nothing and emits no event.
func TestDryRun(t *testing.T) {
	w := newWorld()
	if _, ch, err := w.service().Create(t.Context(), spec(), true); err != nil || ch.Outcome != volume.Created {
		t.Errorf("create: %v, %+v", err, ch)
	}
	if _, ch, err := w.service().Register(t.Context(), existing(), true); err != nil || ch.Outcome != volume.Registered {
		t.Errorf("register: %v, %+v", err, ch)
	}
	if len(w.volumes)+len(w.events) != 0 {
		t.Errorf("left: %+v, %q", w.volumes, w.events)
	}
	w.mustRegister(t, existing())
	other := existing()
	other.ID = "other"
	_, _, err := w.service().Register(t.Context(), other, true)
	want(t, "a second id", err, volume.ErrRefused, `registered as volume "data"`)
	changed := existing()
	changed.Reclaim = "delete"
	if _, ch, err := w.service().Register(t.Context(), changed, true); err != nil || ch.Outcome != volume.Updated || w.volumes["data"].Volume.Reclaim != "" {
		t.Errorf("update: %v, %+v", err, ch)
	}
}

// TestCreateResumes checks that a repeated create succeeds after the agent died between the call
// and the storing of the result. The plugin returns the same volume for the same name.
func TestCreateResumes(t *testing.T) {
	w := newWorld()
	w.failAt = 2 // the agent writes the intent, but fails to write the result
	_, _, err := w.service().Create(t.Context(), spec(), false)
	want(t, "the first", err, errDisk)
	if got := w.volumes["data"].Volume; got.Provision != volume.Provisioning || got.ExternalID != "" {
		t.Errorf("left is %+v", got)
	}
	if r := w.mustCreate(t); r.Volume.ExternalID != "vol-1" || r.Volume.Provision != volume.Provisioned {
		t.Errorf("resumed as %+v", r.Volume)
	}
	equal(t, "calls", w.calls, []string{"create data", "create data"})

	for what, change := range map[string]func(*volume.Volume){
		"another name":   func(v *volume.Volume) { v.Name = "other" },
		"another plugin": func(v *volume.Volume) { v.PluginID = "ebs2" },
	} {
		w := newWorld()
		w.failAt = 2
		if _, _, err := w.service().Create(t.Context(), spec(), false); err == nil {
			t.Fatal("it did not fail")
		}
		v := spec()
		v.Name = "data"
		change(&v)
		o := w.options()
		o.Plugins = anyPlugin{w}
		_, _, err := provision.New(o).Create(t.Context(), v, false)
		want(t, what, err, volume.ErrRefused, `"data"`, "has not finished")
		if got := w.volumes["data"].Volume; got.Name != "data" || got.PluginID != "ebs" {
			t.Errorf("%s: the intent became %+v", what, got)
		}
	}
}

// anyPlugin is a plugin registry that knows every plugin id.
type anyPlugin struct{ *world }

func (p anyPlugin) View(string) plugin.View { return p.view }

func TestCreateFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		kept  bool
		kind  error
		words []string
	}{
		{"a deadline", made("DeadlineExceeded", volume.RetryBackoff, false), true, volume.ErrTimeout, []string{"it is unknown", "whether the plugin made", "keeps the intent", "hint: repeat the create", "deregister data --force"}},
		{"a lost connection", made("Unavailable", volume.RetryBackoff, false), true, volume.ErrPluginUnavailable, []string{"it is unknown"}},
		{"an internal error", made("Internal", volume.RetryBackoff, true), true, nil, []string{"it is unknown"}},
		{"a plain Go error", made("Unknown", volume.RetryBackoff, true), true, nil, []string{"it is unknown"}},
		{"bad arguments", made("InvalidArgument", volume.RetryChange, true), false, volume.ErrInvalid, []string{"refuses", "no"}},
		{"a capacity that cannot be", made("OutOfRange", volume.RetryChange, true), false, volume.ErrInvalid, nil},
		{"no room", made("ResourceExhausted", volume.RetryBackoff, true), false, nil, []string{"ResourceExhausted"}},
		{"a name with other arguments", made("AlreadyExists", volume.RetryChange, true), false, nil, []string{"AlreadyExists"}},
		{"secrets that are refused", made("Unauthenticated", volume.RetryChange, true), false, nil, nil},
		{"a refusal that came too late", made("InvalidArgument", volume.RetryChange, false), true, nil, []string{"it is unknown"}},
	} {
		w := newWorld()
		good := w.create
		w.create = func(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
			return call.CreateVolumeResult{}, tt.err
		}
		_, _, err := w.service().Create(t.Context(), spec(), false)
		want(t, tt.name, err, tt.kind, tt.words...)
		if r, there := w.volumes["data"]; there != tt.kept || there && r.Volume.Provision != volume.Provisioning {
			t.Errorf("%s: the intent is there: %t, want %t: %+v", tt.name, there, tt.kept, r.Volume)
		}
		if len(w.events) != 1 || !strings.HasPrefix(w.events[0], "create-failed data: ") {
			t.Errorf("%s: events %q", tt.name, w.events)
		}
		if !tt.kept {
			continue
		}
		// The agent must refuse a claim while the outcome of the create is unknown. If the plugin
		// then refuses a second create, the first create may still have succeeded.
		if _, err := volume.Admit(w.volumes["data"], volume.Request{Alloc: "web"}, plugin.Info{}, w.volumes["data"].Volume.RegisteredAt); !errors.Is(err, volume.ErrRefused) {
			t.Errorf("%s: a claim is told %v", tt.name, err)
		}
		w.create = func(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
			return call.CreateVolumeResult{}, made("AlreadyExists", volume.RetryChange, true)
		}
		_, _, err = w.service().Create(t.Context(), spec(), false)
		want(t, tt.name+", then a refusal", err, nil, "an earlier create", "deregister data --force")
		if _, there := w.volumes["data"]; !there {
			t.Errorf("%s: a later refusal dropped the intent", tt.name)
		}
		w.create = good
		if r := w.mustCreate(t); r.Volume.ExternalID != "vol-1" {
			t.Errorf("%s: resumed as %+v", tt.name, r.Volume)
		}
	}
}

func TestCreateRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*world, *volume.Volume)
		kind   error
		words  string
	}{
		{"a bad file", func(_ *world, v *volume.Volume) { v.Capabilities = nil }, volume.ErrInvalid, "no capability"},
		{"an external id", func(_ *world, v *volume.Volume) { v.ExternalID = "vol-9" }, volume.ErrInvalid, "hint: volctl volume register"},
		{"no such plugin", func(_ *world, v *volume.Volume) { v.PluginID = "nfs" }, volume.ErrNotFound, `no plugin "nfs"`},
		{"the plugin is down", func(w *world, _ *volume.Volume) { w.await = volume.ErrPluginUnavailable }, volume.ErrPluginUnavailable, ""},
		{"it cannot create", func(w *world, _ *volume.Volume) { w.view.Info.Caps.CreateDelete = false }, volume.ErrRefused, "cannot create volumes"},
		{"a secret cannot be read", func(w *world, _ *volume.Volume) { w.secrets = errors.New("no such file") }, nil, "no such file"},
		{"a secret cannot be sealed", func(w *world, _ *volume.Volume) { w.seal = errors.New("bad key") }, nil, "bad key"},
		{"a secret to be kept", func(_ *world, v *volume.Volume) { v.Secrets = map[string]call.SecretRef{"key": {Keep: true}} }, volume.ErrRefused, "has no sealed value"},
		{"the intent cannot be written", func(w *world, _ *volume.Volume) { w.failAt = 1 }, errDisk, ""},
	} {
		w, v := newWorld(), spec()
		tt.change(w, &v)
		_, _, err := w.service().Create(t.Context(), v, false)
		want(t, tt.name, err, tt.kind, tt.words)
		if len(w.calls)+len(w.volumes) != 0 {
			t.Errorf("%s: calls %q, left %+v", tt.name, w.calls, w.volumes)
		}
	}
}

// TestCreateCancelled checks that the agent stores the result even if the context of the caller
// ends during the call.
func TestCreateCancelled(t *testing.T) {
	w := newWorld()
	ctx, cancel := context.WithCancel(t.Context())
	good := w.create
	w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) { cancel(); return good(r) }
	if _, _, err := w.service().Create(ctx, spec(), false); err != nil {
		t.Error(err)
	}
	if got := w.volumes["data"].Volume; got.ExternalID != "vol-1" || got.Provision != volume.Provisioned {
		t.Errorf("stored is %+v", got)
	}
}

// TestCreateFindsRegistered checks a create for which the plugin returns a volume that is already
// registered under another id.
func TestCreateFindsRegistered(t *testing.T) {
	w := newWorld()
	other := existing()
	other.ID = "first"
	w.mustRegister(t, other)
	w.create = func(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		return call.CreateVolumeResult{ExternalID: "vol-9"}, nil
	}
	_, _, err := w.service().Create(t.Context(), spec(), false)
	want(t, "create", err, volume.ErrRefused, `external_id "vol-9" of driver ebs.csi is already registered as volume "first"`)
	if _, there := w.volumes["data"]; there || len(w.volumes) != 1 {
		t.Errorf("left: %+v", w.volumes)
	}
}

// TestDeregisteredMeanwhile checks a volume that is deregistered or replaced while a call runs. The
// end of the call must neither restore nor overwrite the record.
func TestDeregisteredMeanwhile(t *testing.T) {
	for what, meanwhile := range map[string]func(*world){
		"deregistered": func(w *world) {
			if _, err := w.service().Deregister(context.Background(), "data", true); err != nil {
				t.Error(err)
			}
		},
		"another volume": func(w *world) {
			r := w.volumes["data"]
			r.Volume.Provision, r.Volume.ExternalID = volume.Provisioned, "vol-7"
			w.volumes["data"] = r
		},
	} {
		for how, fails := range map[string]error{"made": nil, "refused": made("InvalidArgument", volume.RetryChange, true)} {
			w := newWorld()
			good := w.create
			w.create = func(r call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
				meanwhile(w)
				if fails != nil {
					return call.CreateVolumeResult{}, fails
				}
				return good(r)
			}
			_, _, err := w.service().Create(t.Context(), spec(), false)
			if how == "made" {
				want(t, what, err, volume.ErrRefused, "deregistered meanwhile", `"vol-1"`)
			} else {
				want(t, what, err, nil)
			}
			got, there := w.volumes["data"]
			if there != (what == "another volume") || there && got.Volume.ExternalID != "vol-7" {
				t.Errorf("%s, %s: left is %+v", what, how, w.volumes)
			}
		}
	}
}
