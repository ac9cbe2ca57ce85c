package call

import (
	"maps"
	"slices"
)

// MountOptions are passed to the plugin for volumes with a file system.
type MountOptions struct {
	FSType     string   `json:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty"`
}

// TopologyRequest says where a created volume must or should be reachable.
type TopologyRequest struct {
	Required  []map[string]string `json:"required,omitempty"`
	Preferred []map[string]string `json:"preferred,omitempty"`
}

// Given reports whether the request names a place.
func (t TopologyRequest) Given() bool { return len(t.Required)+len(t.Preferred) > 0 }

// Equal reports whether the options mean the same. A missing list equals an empty one.
func (o MountOptions) Equal(other MountOptions) bool {
	return o.FSType == other.FSType && slices.Equal(o.MountFlags, other.MountFlags)
}

// Shown returns the options for show, which prints an empty value as "none".
func (o MountOptions) Shown() any {
	if o.FSType == "" && len(o.MountFlags) == 0 {
		return ""
	}
	return o
}

// Equal reports whether both requests name the same places in the same order.
func (t TopologyRequest) Equal(other TopologyRequest) bool {
	same := func(a, b []map[string]string) bool { return slices.EqualFunc(a, b, maps.Equal) }
	return same(t.Required, other.Required) && same(t.Preferred, other.Preferred)
}

// Shown returns the request for show, which prints an empty value as "none".
func (t TopologyRequest) Shown() any {
	if !t.Given() {
		return ""
	}
	return t
}
