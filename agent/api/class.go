package api

// ClassSpec has the same fields as a class file. A class contains the properties that the volumes of
// one kind have in common.
type ClassSpec struct {
	ID   string `json:"id"`
	Note string `json:"note,omitempty"` // a sentence for the operator

	// PluginID is the plugin that creates the volumes. Driver is the name of its CSI driver, and
	// replaces PluginID. A class file has exactly one of them.
	PluginID string `json:"plugin_id,omitempty"`
	Driver   string `json:"driver,omitempty"`

	// NamePrefix is the beginning of the name that the agent suggests to the plugin. The id of the
	// volume follows it. The variable ${NODE_ID} stands for the node id of the host.
	NamePrefix string    `json:"name_prefix,omitempty"`
	Size       ClassSize `json:"size,omitzero"`

	// Capabilities lists the capabilities that a volume may have. A request selects some of them. If
	// the list is empty, the request decides.
	Capabilities []Capability      `json:"capabilities,omitempty"`
	MountOptions *MountOptions     `json:"mount_options,omitempty"`
	Topology     *TopologyRequest  `json:"topology_request,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty"`
	Mutable      map[string]string `json:"mutable_parameters,omitempty"`

	// Secrets contains only references.
	Secrets map[string]Secret `json:"secrets,omitempty"`
	Reclaim string            `json:"reclaim,omitempty"` // ReclaimRetain or ReclaimDelete; empty leaves it to the request
	Scope   string            `json:"scope,omitempty"`   // ScopeHost or ScopeShared; empty leaves it to the request

	// Allow names the fields of the class that a request may replace.
	Allow []string `json:"allow,omitempty"`
}

// ClassSize limits the size of the volumes of a class. The values are in bytes. Zero means none.
type ClassSize struct {
	Default int64 `json:"default,omitempty"` // the size of a volume whose request has no size
	Min     int64 `json:"min,omitempty"`
	Max     int64 `json:"max,omitempty"`
}

// Class is a class of volumes, and the state of its file.
type Class struct {
	Spec ClassSpec `json:"spec"`

	// File is the path of the class file. Line is the line of Problem, counted from 1. Line is 0 if
	// the problem has no line.
	File string `json:"file"`
	Line int    `json:"line,omitempty"`

	// Problem is the reason why no volume can be created with the class. It is empty if the class
	// has no mistake. Spec may then be incomplete.
	Problem string `json:"problem,omitempty"`

	// Warnings describe settings of a Kubernetes StorageClass that this host cannot apply.
	Warnings []string `json:"warnings,omitempty"`

	// PluginID is the plugin that creates the volumes. It is empty if it is unknown. PluginState is
	// the state of this plugin.
	PluginID    string   `json:"plugin_id,omitempty"`
	PluginState string   `json:"plugin_state,omitempty"`
	Volumes     []string `json:"volumes"` // the ids of the volumes that were created with the class
}
