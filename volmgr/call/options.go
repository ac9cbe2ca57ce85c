package call

import (
	"maps"
	"slices"
)

// MountOptions holds the options with which the plugin mounts a volume that has a file system.
type MountOptions struct {
	FSType     string   `json:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty"`
}

// TopologyRequest names the topology segments from which a new volume must be reachable, and those
// from which it should preferably be reachable.
type TopologyRequest struct {
	Required  []map[string]string `json:"required,omitempty"`
	Preferred []map[string]string `json:"preferred,omitempty"`
}

// Given reports whether the request names any segments.
func (t TopologyRequest) Given() bool { return len(t.Required)+len(t.Preferred) > 0 }

// Equal reports whether both options have the same meaning. A missing list equals an empty one.
func (o MountOptions) Equal(other MountOptions) bool {
	return o.FSType == other.FSType && slices.Equal(o.MountFlags, other.MountFlags)
}

// Shown returns the options in the form that messages use. For empty options, it returns "none".
func (o MountOptions) Shown() any {
	if o.FSType == "" && len(o.MountFlags) == 0 {
		return ""
	}
	return o
}

// Equal reports whether both requests name the same segments in the same order.
func (t TopologyRequest) Equal(other TopologyRequest) bool {
	same := func(a, b []map[string]string) bool { return slices.EqualFunc(a, b, maps.Equal) }
	return same(t.Required, other.Required) && same(t.Preferred, other.Preferred)
}

// Shown returns the request in the form that messages use. For an empty request, it returns "none".
func (t TopologyRequest) Shown() any {
	if !t.Given() {
		return ""
	}
	return t
}
