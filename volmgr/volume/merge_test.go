package volume_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// registered returns a record of a volume as the state database contains it.
func registered() volume.Record {
	return volume.Record{Volume: volume.Volume{
		ID: "data", Name: "data", PluginID: "ebs", Driver: "ebs.csi", ExternalID: "vol-1", SnapshotID: "snap-1",
		CapacityMin: 10, CapacityMax: 20, Capacity: 12,
		Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}},
		MountOptions: call.MountOptions{FSType: "ext4"},
		Topology:     call.TopologyRequest{Required: []map[string]string{{"zone": "a"}}},
		Topologies:   []map[string]string{{"zone": "a"}},
		Parameters:   map[string]string{"type": "gp3"},
		Context:      map[string]string{"iops": "3000"},
		Secrets:      map[string]call.SecretRef{"key": {File: "/etc/key"}},
		Created:      true, RegisteredAt: time.Unix(1, 0),
	}}
}

// file returns the same volume in the form in which a user writes it, without the fields that the
// agent controls.
func file() volume.Volume {
	v := registered().Volume
	v.Driver, v.Capacity, v.Topologies, v.Created, v.RegisteredAt = "", 0, nil, false, time.Time{}
	return v
}

func TestMergeUnchanged(t *testing.T) {
	for name, change := range map[string]func(*volume.Volume){
		"the same":            func(*volume.Volume) {},
		"open fields omitted": func(v *volume.Volume) { v.Name, v.ExternalID, v.CapacityMin, v.CapacityMax = "", "", 0, 0 },
		"source omitted":      func(v *volume.Volume) { v.SnapshotID = "" },
		"parameters omitted":  func(v *volume.Volume) { v.Parameters = nil },
		"topology omitted":    func(v *volume.Volume) { v.Topology = call.TopologyRequest{} },
		"context omitted":     func(v *volume.Volume) { v.Context = nil },
		"empty, not nil":      func(v *volume.Volume) { v.MountOptions.MountFlags = nil; v.Context = map[string]string{} },
	} {
		spec := file()
		change(&spec)
		r := registered()
		got, changes, err := volume.Merge(r, spec)
		if err != nil || len(changes) != 0 || !reflect.DeepEqual(got, r.Volume) {
			t.Errorf("%s: %v, changes %q, %+v", name, err, changes, got)
		}
	}
}

func TestMergeImmutable(t *testing.T) {
	for field, tt := range map[string]struct {
		change   func(*volume.Volume)
		from, to string
	}{
		"name":             {func(v *volume.Volume) { v.Name = "new" }, `"data"`, `"new"`},
		"plugin_id":        {func(v *volume.Volume) { v.PluginID = "nfs" }, `"ebs"`, `"nfs"`},
		"external_id":      {func(v *volume.Volume) { v.ExternalID = "vol-2" }, `"vol-1"`, `"vol-2"`},
		"snapshot_id":      {func(v *volume.Volume) { v.SnapshotID = "snap-2" }, `"snap-1"`, `"snap-2"`},
		"clone_id":         {func(v *volume.Volume) { v.CloneID = "vol-9" }, "none", `"vol-9"`},
		"parameters":       {func(v *volume.Volume) { v.Parameters = map[string]string{"type": "io2"} }, `{"type":"gp3"}`, `{"type":"io2"}`},
		"topology_request": {func(v *volume.Volume) { v.Topology.Required[0] = map[string]string{"zone": "b"} }, `{"required":[{"zone":"a"}]}`, `{"required":[{"zone":"b"}]}`},
	} {
		spec := file()
		spec.Topology.Required = []map[string]string{{"zone": "a"}}
		tt.change(&spec)
		r := registered()
		got, changes, err := volume.Merge(r, spec)
		want := "cannot change " + field + ` of volume "data" from ` + tt.from + " to " + tt.to + ": this field cannot change"
		if !errors.Is(err, volume.ErrRefused) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", field, err, want)
		}
		if changes != nil || !reflect.DeepEqual(got, r.Volume) {
			t.Errorf("%s: a refused merge returned %+v with the changes %q", field, got, changes)
		}
	}
}

// TestMergeNamesAllThatIsRefused checks that Merge returns one error that names all refused
// changes.
func TestMergeNamesAllThatIsRefused(t *testing.T) {
	spec := file()
	spec.Name, spec.Parameters = "new", map[string]string{"type": "gp3", "iops": "1"}
	r := registered()
	r = admit(t, r, writer("a"))
	spec.MountOptions.FSType = "xfs"
	_, changes, err := volume.Merge(r, spec)
	const want = `cannot change name of volume "data" from "data" to "new": this field cannot change; ` +
		`nor parameters from {"type":"gp3"} to {"iops":"1","type":"gp3"}: this field cannot change; ` +
		`nor mount_options from {"fs_type":"ext4"} to {"fs_type":"xfs"}: they can change only while the volume is free`
	if !errors.Is(err, volume.ErrRefused) || err.Error() != want || changes != nil {
		t.Errorf("%q, got  %v\nwant %s", changes, err, want)
	}
}

func TestMergeChanges(t *testing.T) {
	for field, tt := range map[string]struct {
		change func(*volume.Volume)
		want   string
	}{
		"capabilities": {func(v *volume.Volume) {
			v.Capabilities = []call.Capability{{Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem}}
		}, `capabilities: [{"access_mode":"single-node-writer","attachment_mode":"file-system"}] → [{"access_mode":"single-node-multi-writer","attachment_mode":"file-system"}]`},
		"mount options": {func(v *volume.Volume) { v.MountOptions.FSType = "xfs" }, `mount_options: {"fs_type":"ext4"} → {"fs_type":"xfs"}`},
		"context":       {func(v *volume.Volume) { v.Context = map[string]string{"iops": "1"} }, `context: {"iops":"3000"} → {"iops":"1"}`},
		"reclaim":       {func(v *volume.Volume) { v.Reclaim = "delete" }, `reclaim: none → "delete"`},
		"capacity_min":  {func(v *volume.Volume) { v.CapacityMin = 15 }, "capacity_min: 10B → 15B"},
		"capacity_max":  {func(v *volume.Volume) { v.CapacityMax = 30 << 20 }, "capacity_max: 20B → 30MiB"},
		"secrets":       {func(v *volume.Volume) { v.Secrets = nil }, `secrets: {"key":{"file":"/etc/key"}} → none`},
	} {
		spec := file()
		tt.change(&spec)
		want := registered().Volume
		tt.change(&want)
		got, changes, err := volume.Merge(registered(), spec)
		if err != nil || len(changes) != 1 || changes[0] != tt.want || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, changes %q, want %q\n got %+v\nwant %+v", field, err, changes, tt.want, got, want)
		}
	}
}

// TestMergeShrinks checks that a volume never shrinks, and that its size remains within its bounds.
// If a volume is larger than capacity_min, this must not count as a change.
func TestMergeShrinks(t *testing.T) {
	spec := file()
	spec.CapacityMin = 9
	if got, changes, err := volume.Merge(registered(), spec); err != nil || len(changes) > 0 || got.CapacityMin != 10 {
		t.Errorf("capacity_min 9B: %v, %q, %+v", err, changes, got)
	}
	for want, change := range map[string]func(*volume.Volume){
		`capacity_max of volume "data" from 20B to 11B: the volume has 12B and cannot shrink`: func(v *volume.Volume) { v.CapacityMax = 11 },
		`capacity_max of volume "data" from 20B to 9B: the volume has 12B and cannot shrink`:  func(v *volume.Volume) { v.CapacityMax = 9 },
		`capacity_min of volume "data" from 10B to 30B: its capacity_max is 20B`:              func(v *volume.Volume) { v.CapacityMin, v.CapacityMax = 30, 0 },
	} {
		spec := file()
		change(&spec)
		got, _, err := volume.Merge(registered(), spec)
		if !errors.Is(err, volume.ErrRefused) || err.Error() != "cannot change "+want || !reflect.DeepEqual(got, registered().Volume) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestMergeTopologyBeforeItIsKnown checks that a user may change the requested topology as long as
// the plugin has not returned a topology.
func TestMergeTopologyBeforeItIsKnown(t *testing.T) {
	r := registered()
	r.Volume.Topologies = nil
	spec := file()
	spec.Topology = call.TopologyRequest{Preferred: []map[string]string{{"zone": "b"}}}
	got, changes, err := volume.Merge(r, spec)
	if err != nil || len(changes) != 1 || !reflect.DeepEqual(got.Topology, spec.Topology) {
		t.Errorf("%v, %q, %+v", err, changes, got.Topology)
	}
}

func TestMergeWhileInUse(t *testing.T) {
	r := registered()
	r = admit(t, r, writer("a"))
	spec := file()
	spec.Capabilities = append(spec.Capabilities, call.Capability{Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem})
	if got, changes, err := volume.Merge(r, spec); err != nil || len(changes) != 1 || len(got.Capabilities) != 2 {
		t.Errorf("a further capability: %v, %q", err, changes)
	}
	spec.Capabilities = spec.Capabilities[1:]
	if _, _, err := volume.Merge(r, spec); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "cannot change capabilities") || !strings.HasSuffix(err.Error(), "the mode in use must stay among them") {
		t.Errorf("dropping the mode in use: %v", err)
	}
	spec = file()
	spec.MountOptions.FSType = "xfs"
	if _, _, err := volume.Merge(r, spec); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "cannot change mount_options") || !strings.HasSuffix(err.Error(), "only while the volume is free") {
		t.Errorf("other mount options: %v", err)
	}
}

func TestVolumeCheck(t *testing.T) {
	for _, tt := range []struct {
		change func(*volume.Volume)
		bad    string
	}{
		{func(*volume.Volume) {}, ""},
		{func(v *volume.Volume) { v.CapacityMin, v.CapacityMax = 5, 0 }, ""},
		{func(v *volume.Volume) { v.Reclaim = "retain" }, ""},
		{func(v *volume.Volume) { v.ID = "a/b" }, "contains a slash"},
		{func(v *volume.Volume) { v.PluginID = "" }, "plugin id"},
		{func(v *volume.Volume) { v.CloneID = "vol-2" }, "both snapshot_id and clone_id"},
		{func(v *volume.Volume) { v.CapacityMin = -1 }, "negative capacity"},
		{func(v *volume.Volume) { v.CapacityMin = 30 }, "larger than its capacity_max"},
		{func(v *volume.Volume) { v.Reclaim = "keep" }, "it is retain or delete"},
		{func(v *volume.Volume) { v.Capabilities = nil }, "lists no capability"},
		{func(v *volume.Volume) { v.Capabilities[0].Access = "exclusive" }, `unknown access mode "exclusive"`},
		{func(v *volume.Volume) { v.Capabilities[0].Attachment = "" }, `unknown attachment mode ""`},
		{func(v *volume.Volume) { v.Secrets["key"] = call.SecretRef{} }, `secret "key" of volume "data" names no source`},
		{func(v *volume.Volume) { v.Secrets["key"] = call.SecretRef{File: "/f", Env: "E"} }, `secret "key" of volume "data" names more than one source`},
		{func(v *volume.Volume) { v.Secrets["key"] = call.SecretRef{File: "/f", Keep: true} }, `secret "key" of volume "data" names more than one source`},
		{func(v *volume.Volume) {
			v.Secrets["key"] = call.SecretRef{Literal: call.NewSecret(strings.Repeat("x", call.MaxSecret+1))}
		}, `longer than 65536 bytes`},
	} {
		v := file()
		tt.change(&v)
		checkInvalid(t, "volume", v.Check(), tt.bad)
	}
}

// TestMergeSecrets checks that the text about a change does not show sealed values. The text must
// only say that such values exist or have changed.
func TestMergeSecrets(t *testing.T) {
	type refs = map[string]call.SecretRef
	one, two := call.SecretRef{Sealed: "S1"}, call.SecretRef{Sealed: "S2"}
	for _, tt := range []struct {
		old, now, then refs
		want           string
	}{
		{refs{"key": one}, refs{"key": one}, refs{"key": one}, ""},
		{refs{"key": one}, refs{"key": {Keep: true}}, refs{"key": one}, ""},
		{refs{"key": one}, refs{"key": two}, refs{"key": two}, `secrets: {"key":{"sealed":true}} → {"key":{"sealed":true}}, sealed anew: "key"`},
		{refs{"key": {Env: "K"}}, refs{"key": one}, refs{"key": one}, `secrets: {"key":{"env":"K"}} → {"key":{"sealed":true}}`},
		{refs{"key": one}, refs{"key": {Credential: "K"}}, refs{"key": {Credential: "K"}}, `secrets: {"key":{"sealed":true}} → {"key":{"credential":"K"}}`},
		{refs{"key": one}, refs{"key": {Keep: true}, "b": two}, refs{"key": one, "b": two}, `secrets: {"key":{"sealed":true}} → {"b":{"sealed":true},"key":{"sealed":true}}`},
		{nil, refs{}, nil, ""},
	} {
		r, spec := registered(), file()
		r.Volume.Secrets, spec.Secrets = tt.old, tt.now
		got, changes, err := volume.Merge(r, spec)
		if err != nil || strings.Join(changes, "; ") != tt.want || !reflect.DeepEqual(got.Secrets, tt.then) {
			t.Errorf("%+v → %+v: %v, %q, %+v", tt.old, tt.now, err, changes, got.Secrets)
		}
	}
	r, spec := registered(), file()
	spec.Secrets = refs{"key": {Keep: true}}
	if _, _, err := volume.Merge(r, spec); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), `cannot keep secret "key" of volume "data"`) {
		t.Errorf("a reference in place of what is to be kept: %v", err)
	}
	// A stored record must contain neither the plain value of a secret nor the flag Keep.
	raw, err := json.Marshal(volume.Record{Volume: volume.Volume{Secrets: refs{"key": {Literal: call.NewSecret("hunter2"), Keep: true}}}})
	if err != nil || strings.Contains(string(raw), "hunter2") || !strings.Contains(string(raw), `"secrets":{"key":{}}`) {
		t.Errorf("stored as %s, %v", raw, err)
	}
}
