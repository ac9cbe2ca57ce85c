package volume

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
)

// Merge applies a volume file to the registered volume, and keeps the fields that the agent
// controls. The file may omit fields that can never change. If the file changes such a field, Merge
// returns an error that names the field with its old and new value. Otherwise, Merge returns the
// changes as texts. It returns no texts if the file changes nothing.
func Merge(r Record, spec Volume) (Volume, []string, error) {
	return merge(r.Volume, spec, usage{
		inUse: r.Held(),
		keeps: func(all []call.Capability) bool {
			return r.Node.Mode == nil || slices.Contains(all, r.Node.Mode.Capability)
		},
	})
}

// usage is the use of a volume, as far as it limits changes of the volume.
type usage struct {
	inUse bool

	// keeps reports whether a list of capabilities contains the mode in use.
	keeps func([]call.Capability) bool
}

func merge(old, spec Volume, use usage) (Volume, []string, error) {
	if old.Shared != spec.Shared {
		return old, nil, OtherScope(old)
	}

	spec, err := spec.Keeping(old.Secrets)
	if err != nil {
		return old, nil, err
	}

	m := merger{id: old.ID}
	m.fixed("name", old.Name, spec.Name, spec.Name == "")
	m.fixed("plugin_id", old.PluginID, spec.PluginID, false)
	m.fixed("external_id", old.ExternalID, spec.ExternalID, spec.ExternalID == "")
	m.fixed("snapshot_id", old.SnapshotID, spec.SnapshotID, spec.SnapshotID == "")
	m.fixed("clone_id", old.CloneID, spec.CloneID, spec.CloneID == "")
	m.fixed("parameters", old.Parameters, spec.Parameters, len(spec.Parameters) == 0)
	m.fixed("topology_request", old.Topology, spec.Topology, len(old.Topologies) == 0 || !spec.Topology.Given())

	now := m.capacity(old, spec)
	if !use.keeps(spec.Capabilities) {
		m.refuse("capabilities", old.Capabilities, spec.Capabilities, "the mode in use must stay among them")
	}

	now.Capabilities = change(&m, "capabilities", old.Capabilities, spec.Capabilities)
	if use.inUse && !reflect.DeepEqual(old.MountOptions, spec.MountOptions) {
		m.refuse("mount_options", old.MountOptions, spec.MountOptions, "they can change only while the volume is free")
	}

	now.MountOptions = change(&m, "mount_options", old.MountOptions, spec.MountOptions)
	if len(old.Topologies) == 0 && spec.Topology.Given() {
		now.Topology = change(&m, "topology_request", old.Topology, spec.Topology)
	}
	if len(spec.Context) > 0 {
		now.Context = change(&m, "context", old.Context, spec.Context)
	}

	now.Secrets = m.secrets(old.Secrets, spec.Secrets)
	now.Reclaim = change(&m, "reclaim", old.Reclaim, spec.Reclaim)
	if old.Boot != spec.Boot {
		now.Boot, m.changes = spec.Boot, append(m.changes, FieldChange("boot", old.boot(), spec.boot()))
	}
	if old.Takeover != spec.Takeover {
		now.Takeover, m.changes = spec.Takeover, append(m.changes, FieldChange("takeover", old.takeover(), spec.takeover()))
	}
	if m.err != nil {
		return old, nil, m.err
	}

	return now, m.changes, nil
}

type merger struct {
	id      string
	changes []string
	err     error
}

// fixed refuses a new value of a field that cannot change. The parameter skip is set if the file
// omits the field.
func (m *merger) fixed(field string, old, now any, skip bool) {
	if !skip && !reflect.DeepEqual(old, now) {
		m.refuse(field, old, now, "this field cannot change")
	}
}

// refuse adds a field to the error about all refused changes.
func (m *merger) refuse(field string, old, now any, why string) {
	if m.err == nil {
		m.err = Errorf(ErrRefused, "cannot change %s of volume %q from %s to %s: %s", field, m.id, show(old), show(now), why)
		return
	}
	m.err = Errorf(ErrRefused, "%v; nor %s from %s to %s: %s", m.err, field, show(old), show(now), why)
}

// capacity applies new bounds of the capacity. A volume can grow but never shrink. The file may
// omit either bound. A smaller capacity_min changes nothing. Users can therefore register the file
// of a created volume again after an expansion.
func (m *merger) capacity(old, spec Volume) Volume {
	now := old
	if least := spec.CapacityMin; least > old.CapacityMin {
		now.CapacityMin = change(m, "capacity_min", bytes(old.CapacityMin), bytes(least)).int64()
	}
	if most := spec.CapacityMax; most != 0 && most != old.CapacityMax {
		if most < old.size() {
			m.refuse("capacity_max", bytes(old.CapacityMax), bytes(most), "the volume has "+Size(old.size())+" and cannot shrink")
			return old
		}

		now.CapacityMax = change(m, "capacity_max", bytes(old.CapacityMax), bytes(most)).int64()
	}

	if now.CapacityMax > 0 && now.CapacityMin > now.CapacityMax {
		m.refuse("capacity_min", bytes(old.CapacityMin), bytes(now.CapacityMin), "its capacity_max is "+Size(now.CapacityMax))
	}

	return now
}

// bytes is a size that messages show in the same format as volume files.
type bytes int64

func (b bytes) int64() int64 { return int64(b) }

// change returns the new value of a field that may change. If the value differs from the old one,
// change adds the difference to the texts about the changes.
func change[T any](m *merger, field string, old, now T) T {
	if reflect.DeepEqual(old, now) || size(old) == 0 && size(now) == 0 {
		return old
	}
	m.changes = append(m.changes, fmt.Sprintf("%s: %s → %s", field, show(old), show(now)))
	return now
}

// secrets returns the new references to secrets. The text about the change does not show sealed
// values. It only says which secrets have a new sealed value.
func (m *merger) secrets(old, now map[string]call.SecretRef) map[string]call.SecretRef {
	if maps.Equal(old, now) {
		return old
	}

	shown := func(refs map[string]call.SecretRef) map[string]map[string]any {
		all := make(map[string]map[string]any, len(refs))
		for name, ref := range refs {
			switch {
			case ref.File != "":
				all[name] = map[string]any{"file": ref.File}
			case ref.Credential != "":
				all[name] = map[string]any{"credential": ref.Credential}
			case ref.Env != "":
				all[name] = map[string]any{"env": ref.Env}
			default:
				all[name] = map[string]any{"sealed": true}
			}
		}

		return all
	}

	words := fmt.Sprintf("secrets: %s → %s", show(shown(old)), show(shown(now)))
	var anew []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was := old[name]; was.Sealed != "" && now[name] != was && (now[name].Sealed != "" || now[name].Literal.Given()) {
			anew = append(anew, strconv.Quote(name))
		}
	}

	if len(anew) > 0 {
		words += ", sealed anew: " + strings.Join(anew, ", ")
	}

	m.changes = append(m.changes, words)
	return now
}

// show formats a value as JSON, or returns "none" for an empty value.
func show(v any) string {
	if size(v) == 0 {
		return "none"
	}
	if b, ok := v.(bytes); ok {
		return Size(b.int64())
	}

	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(raw)
}

// size returns 0 for an empty value. A nil map or slice and an empty one therefore count as equal.
func size(v any) int {
	if v == bytes(0) {
		return 0
	}

	switch rv := reflect.ValueOf(v); rv.Kind() {
	case reflect.Map, reflect.Slice:
		return rv.Len()
	case reflect.String:
		return rv.Len()
	default:
		return 1
	}
}

// Check returns an error if the fields of the volume are invalid or contradict each other. It does
// not compare the volume with other volumes.
func (v Volume) Check() error {
	if err := CheckID("volume id", v.ID); err != nil {
		return err
	}
	if err := CheckPluginID(v.PluginID); err != nil {
		return err
	}

	switch {
	case v.SnapshotID != "" && v.CloneID != "":
		return Errorf(ErrInvalid, "volume %q has both snapshot_id and clone_id; at most one can be its source", v.ID)
	case v.CapacityMin < 0 || v.CapacityMax < 0:
		return Errorf(ErrInvalid, "volume %q has a negative capacity", v.ID)
	case v.CapacityMax > 0 && v.CapacityMin > v.CapacityMax:
		return Errorf(ErrInvalid, "capacity_min of volume %q is larger than its capacity_max", v.ID)
	case v.Reclaim != "" && v.Reclaim != "retain" && v.Reclaim != "delete":
		return Errorf(ErrInvalid, "reclaim of volume %q is %q; it is retain or delete", v.ID, v.Reclaim)
	case len(v.Capabilities) == 0:
		return Errorf(ErrInvalid, "volume %q lists no capability", v.ID)
	}

	for _, c := range v.Capabilities {
		if err := CheckCapability(c); err != nil {
			return err
		}
	}

	if err := v.checkBootModes(); err != nil {
		return err
	}
	if err := v.checkTakeover(); err != nil {
		return err
	}
	if err := v.checkSecrets(); err != nil {
		return err
	}

	return v.CheckMutable()
}

// Change is the change of a volume by a register, create or modify.
type Change struct {
	Outcome string   // one of the constants below, such as Created
	Fields  []string // the changed fields, each as "field: old → new"
}

// These constants are the outcomes of a command that changes a volume.
const (
	Created     = "created"
	Registered  = "registered"
	Updated     = "updated"
	Modified    = "modified"
	Grown       = "expanded"
	Growing     = "expanding" // the expansion continues after the command has ended
	SharedNow   = "shared"
	UnsharedNow = "unshared"
	GivenUp     = "withdrawn" // the command withdrew an expansion
	Unchanged   = "unchanged"
)

// Differences compares a request to create a volume with the existing volume of the same id. It
// returns one text "field: old → new" for each difference, and no text if the volume satisfies the
// request. The capacity of the volume must be at least capacity_min and, if capacity_max is set, at
// most capacity_max.
//
// The class is compared only if both have one, because an older agent does not store it.
//
// A request may omit the context, because the plugin determines the context. It may also omit the
// mutable parameters and the fields that cannot change: name, source, parameters and
// topology_request. All other omitted fields have their default values.
func (v Volume) Differences(request Volume) []string {
	var d differences

	d.unless(request.Name == "" || request.Name == v.Name, "name", v.Name, request.Name)
	d.unless(request.PluginID == v.PluginID, "plugin_id", v.PluginID, request.PluginID)
	d.unless(request.Class == "" || v.Class == "" || request.Class == v.Class, "class", v.Class, request.Class)
	d.unless(request.SnapshotID == "" || request.SnapshotID == v.SnapshotID, "snapshot_id", v.SnapshotID, request.SnapshotID)
	d.unless(request.CloneID == "" || request.CloneID == v.CloneID, "clone_id", v.CloneID, request.CloneID)
	d.capacity(v, request)

	d.unless(slices.Equal(v.Capabilities, request.Capabilities), "capabilities", v.Capabilities, request.Capabilities)
	d.unless(v.MountOptions.Equal(request.MountOptions), "mount_options", v.MountOptions.Shown(), request.MountOptions.Shown())
	d.unless(!request.Topology.Given() || v.Topology.Equal(request.Topology), "topology_request", v.Topology.Shown(), request.Topology.Shown())
	d.unless(len(request.Parameters) == 0 || maps.Equal(v.Parameters, request.Parameters), "parameters", v.Parameters, request.Parameters)
	if wanted := v.Mutations(request.Mutable); len(wanted) > 0 {
		d = append(d, v.MutableChange(wanted))
	}

	// For a volume that the agent created, the plugin may have returned a context that differs from
	// the requested one.
	asIs := v.Created || len(request.Context) == 0 || maps.Equal(v.Context, request.Context)
	d.unless(asIs, "context", v.Context, request.Context)

	m := merger{id: v.ID}
	m.secrets(v.Secrets, request.Secrets)
	d = append(d, m.changes...)
	d.unless(v.reclaim() == request.reclaim(), "reclaim", v.reclaim(), request.reclaim())
	d.unless(v.Boot == request.Boot, "boot", v.boot(), request.boot())
	d.unless(v.Takeover == request.Takeover, "takeover", v.takeover(), request.takeover())
	return d
}

// differences collects a text for each field that differs.
type differences []string

// unless adds the text for a field with both its values. If agree is set, unless adds nothing.
func (d *differences) unless(agree bool, field string, old, now any) {
	if !agree {
		*d = append(*d, FieldChange(field, old, now))
	}
}

// capacity adds the requested bounds that the volume will not satisfy even after its current
// expansion.
func (d *differences) capacity(v, request Volume) {
	has := max(v.CapacityMin, v.size(), v.Expansion.Want)
	d.unless(request.CapacityMin <= has, "capacity_min", bytes(has), bytes(request.CapacityMin))
	if most := request.CapacityMax; most != 0 && most != v.CapacityMax {
		d.unless(v.CapacityMax == 0 && has <= most, "capacity_max", bytes(v.CapacityMax), bytes(most))
	}
}

// FieldChange describes one difference as "field: old → new".
func FieldChange(field string, old, now any) string {
	return field + ": " + show(old) + " → " + show(now)
}

// reclaim returns what happens to the volume when a container runtime removes it. The default is
// retain.
func (v Volume) reclaim() string {
	if v.Reclaim == "" {
		return "retain"
	}
	return v.Reclaim
}

// boot returns the value of Boot as volume files have it.
func (v Volume) boot() string {
	if v.Boot == BootWait {
		return "wait"
	}
	return v.Boot
}

// CheckMutable returns an error if a mutable parameter has no name.
func (v Volume) CheckMutable() error {
	if _, ok := v.Mutable[""]; ok {
		return Errorf(ErrInvalid, "a mutable parameter of volume %q has no name", v.ID)
	}
	return nil
}

// Mutations returns the requested mutable parameters that the plugin has not confirmed yet. The
// other parameters of the volume do not change, because CSI has no call that removes a parameter.
func (v Volume) Mutations(asked map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range asked {
		have, known := v.Mutable[name]
		if _, open := v.Modifying[name]; open || !known || have != value {
			out[name] = value
		}
	}

	return out
}

// Mutated returns the volume after the plugin has confirmed the mutable parameters in now. These
// parameters are no longer part of the unfinished modify.
func (v Volume) Mutated(now map[string]string) Volume {
	v.Mutable, v.Modifying = merged(v.Mutable, now), maps.Clone(v.Modifying)
	maps.DeleteFunc(v.Modifying, func(name, _ string) bool { _, settled := now[name]; return settled })
	if len(v.Modifying) == 0 {
		v.Modifying = nil
	}
	return v
}

// Mutating returns the volume with the intent to change the mutable parameters in now.
func (v Volume) Mutating(now map[string]string) Volume {
	v.Modifying = merged(v.Modifying, now)
	return v
}

// MutableChange describes the effect of Mutated in the same format as Merge.
func (v Volume) MutableChange(now map[string]string) string {
	return fmt.Sprintf("mutable_parameters: %s → %s", show(v.Mutable), show(merged(v.Mutable, now)))
}

func merged(old, now map[string]string) map[string]string {
	out := maps.Clone(old)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, now)
	return out
}

// modifying returns the parameters of an unfinished modify, in the form of arguments of the
// command.
func (v Volume) modifying() []string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(v.Modifying)) {
		pairs = append(pairs, name+"="+v.Modifying[name])
	}
	return pairs
}

// inDoubt describes the parameters whose values are unknown because a modify has not finished.
func (v Volume) inDoubt() []string {
	pairs := v.modifying()
	if len(pairs) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("it is unknown whether modifying %s had an effect; to continue: %s",
		strings.Join(pairs, " "), suggest.Words(Modify(v.ID, pairs...)))}
}

// Modify returns the remedy that sets mutable parameters of the volume with the given id.
func Modify(id string, pairs ...string) remedy.Remedy {
	return remedy.Of(remedy.ModifyVolume, append([]string{id}, pairs...)...)
}
