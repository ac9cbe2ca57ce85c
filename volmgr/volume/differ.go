package volume

import (
	"maps"
	"slices"
)

// Differences compares a request to create a volume with the existing volume of that id. It returns
// one text "field: old → new" for each field that differs. There are none if the volume satisfies
// the request. Its capacity must be at least capacity_min and, if capacity_max is set, at most
// that.
//
// A request may leave out the context, which the plugin decides. It may leave out fields that
// cannot change (name, source, parameters, topology_request) and mutable parameters. All other
// fields that it leaves out have their default values.
func (v Volume) Differences(request Volume) []string {
	var d differences

	d.unless(request.Name == "" || request.Name == v.Name, "name", v.Name, request.Name)
	d.unless(request.PluginID == v.PluginID, "plugin_id", v.PluginID, request.PluginID)
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

	// A plugin that creates a volume replaces the context of the request.
	asIs := v.Created || len(request.Context) == 0 || maps.Equal(v.Context, request.Context)
	d.unless(asIs, "context", v.Context, request.Context)

	m := merger{id: v.ID}
	m.secrets(v.Secrets, request.Secrets)
	d = append(d, m.changes...)
	d.unless(v.reclaim() == request.reclaim(), "reclaim", v.reclaim(), request.reclaim())
	return d
}

// differences is a list of texts about fields that differ.
type differences []string

// unless adds a field with both values if they do not agree.
func (d *differences) unless(agree bool, field string, old, now any) {
	if !agree {
		*d = append(*d, FieldChange(field, old, now))
	}
}

// capacity adds the requested bounds that the volume, or its running expansion, does not satisfy.
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

// reclaim returns the policy for a container runtime's "remove volume". The default is retain.
func (v Volume) reclaim() string {
	if v.Reclaim == "" {
		return "retain"
	}
	return v.Reclaim
}
