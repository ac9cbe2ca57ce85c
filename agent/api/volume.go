package api

import "time"

// VolumeSpec is the content of a volume file, field for field.
type VolumeSpec struct {
	ID         string `json:"id" yaml:"id"`
	Name       string `json:"name,omitempty" yaml:"name,omitempty"`
	PluginID   string `json:"plugin_id" yaml:"plugin_id"`
	ExternalID string `json:"external_id,omitempty" yaml:"external_id,omitempty"`

	// SnapshotID and CloneID name the source from which a created volume is filled. At most one of
	// them is set.
	SnapshotID string `json:"snapshot_id,omitempty" yaml:"snapshot_id,omitempty"`
	CloneID    string `json:"clone_id,omitempty" yaml:"clone_id,omitempty"`

	// CapacityMin and CapacityMax are bytes; 0 leaves the bound to the plugin.
	CapacityMin  int64             `json:"capacity_min,omitempty" yaml:"capacity_min,omitempty"`
	CapacityMax  int64             `json:"capacity_max,omitempty" yaml:"capacity_max,omitempty"`
	Capabilities []Capability      `json:"capabilities,omitempty" yaml:"capabilities,omitempty"`
	MountOptions *MountOptions     `json:"mount_options,omitempty" yaml:"mount_options,omitempty"`
	Topology     *TopologyRequest  `json:"topology_request,omitempty" yaml:"topology_request,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty" yaml:"parameters,omitempty"`

	// Mutable are parameters that can change later. Parameters that it does not name stay
	// unchanged.
	Mutable map[string]string `json:"mutable_parameters,omitempty" yaml:"mutable_parameters,omitempty"`
	Context map[string]string `json:"context,omitempty" yaml:"context,omitempty"`
	Secrets map[string]Secret `json:"secrets,omitempty" yaml:"secrets,omitempty"`
	Reclaim string            `json:"reclaim,omitempty" yaml:"reclaim,omitempty"` // "retain" (default) or "delete"
}

// Capability is one combination of modes in which a volume may be claimed.
type Capability struct {
	AccessMode     string `json:"access_mode" yaml:"access_mode"`
	AttachmentMode string `json:"attachment_mode" yaml:"attachment_mode"`
}

// MountOptions are passed to the plugin for file-system volumes.
type MountOptions struct {
	FSType     string   `json:"fs_type,omitempty" yaml:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty" yaml:"mount_flags,omitempty"`
}

// TopologyRequest says where a created volume must or should be reachable.
type TopologyRequest struct {
	Required  []map[string]string `json:"required,omitempty" yaml:"required,omitempty"`
	Preferred []map[string]string `json:"preferred,omitempty" yaml:"preferred,omitempty"`
}

// Secret holds the value of a secret, which the agent stores encrypted, or names the place from
// which the agent reads the value for each call. Exactly one field is set.
type Secret struct {
	File       string `json:"file,omitempty" yaml:"file,omitempty"`             // absolute path on the agent's host
	Credential string `json:"credential,omitempty" yaml:"credential,omitempty"` // a systemd credential of the agent's unit
	Env        string `json:"env,omitempty" yaml:"env,omitempty"`               // a variable of the agent's environment

	// Literal is the value itself. It occurs in requests alone, where a plain JSON string means the
	// same.
	Literal Literal `json:"literal,omitzero" yaml:"-"`

	// Sealed says in an answer that the agent has the value, encrypted. In a request it tells the
	// agent to keep the value that it has.
	Sealed bool `json:"sealed,omitempty" yaml:"sealed,omitempty"`
}

// VolumeResult is the result of a register, create, modify or expand.
type VolumeResult struct {
	// Outcome is "created", "registered", "updated", "modified" or "unchanged". For an expand it is
	// "expanded", "expanding" (the agent continues by itself) or "unchanged". With dry_run it is
	// the outcome that the request would have had.
	Outcome string `json:"outcome"`

	// Changes names the fields that an update changed, as "field: old → new".
	Changes []string `json:"changes,omitempty"`

	// Warnings describe work that a person must do elsewhere. The agent sends none. volctl adds
	// them for volumes imported from other systems.
	Warnings []string `json:"warnings,omitempty"`
	Volume   Volume   `json:"volume"`
}

// ExpandRequest asks to make a volume larger.
type ExpandRequest struct {
	CapacityMin int64 `json:"capacity_min"` // bytes
}

// Expansion is a requested growth of a volume that is not complete.
type Expansion struct {
	// Want is the size that the agent requests from the controller, in bytes. 0 means that the
	// controller has answered or refused.
	Want int64 `json:"want,omitempty"`

	// Node is the size for a NodeExpandVolume that is still needed, in bytes. The agent makes that
	// call when the volume is mounted. Until then the file system is smaller than the storage.
	Node int64 `json:"node,omitempty"`

	// Refused is the reason why the expansion stopped, in words.
	Refused string `json:"refused,omitempty"`
}

// DeregisterResult lists the leftovers of a deregister.
type DeregisterResult struct {
	// Left is empty unless force was needed. It names paths that are still mounted, devices that
	// are still attached, and volumes that still exist at the plugin.
	Left []string `json:"left,omitempty"`
}

// Volume states as shown to people.
const (
	StateFree      = "free"
	StateMounting  = "mounting"
	StateMounted   = "mounted"
	StateDegraded  = "degraded"
	StateDetaching = "detaching"
	StateStuck     = "stuck"
)

// Volume is a volume as the agent knows it.
type Volume struct {
	Spec VolumeSpec `json:"spec"`

	// State is one of the State constants. Summary describes it in a few words ("mounted,
	// writable", "stuck: unmounting").
	State   string `json:"state"`
	Summary string `json:"summary"`

	// Driver is the CSI driver's own name, as in "local.csi.volagent".
	Driver        string `json:"driver,omitempty"`
	PluginState   string `json:"plugin_state"`
	PluginVersion string `json:"plugin_version,omitempty"`

	// Created is set if this agent created the volume, and not if the volume existed before.
	Created      bool                `json:"created"`
	Capacity     int64               `json:"capacity,omitempty"` // bytes; 0 is unknown
	Expansion    *Expansion          `json:"expansion,omitempty"`
	Topologies   []map[string]string `json:"topologies,omitempty"`
	RegisteredAt time.Time           `json:"registered_at"`

	// Mode is the mode in force while the volume has claims.
	Mode *Capability `json:"mode,omitempty"`

	// Controller is set if the plugin's controller must connect the volume to this host before it
	// is staged.
	Controller bool `json:"controller"`

	// Attached and Staged are "absent", "unknown", "failed" or "present".
	Attached    string  `json:"attached"`
	Staged      string  `json:"staged"`
	StagingPath string  `json:"staging_path,omitempty"`
	MountSource string  `json:"mount_source,omitempty"`
	FSType      string  `json:"fs_type,omitempty"`
	Claims      []Claim `json:"claims"`

	// DataSafe and StillMounted are "yes", "no" or "unknown". They are set while the volume is
	// stuck or degraded, and while its data is not safe. DataSafe is "no" if the plugin reports
	// that data is or may be lost, and "yes" if no known problem endangers the data.
	DataSafe     string `json:"data_safe,omitempty"`
	StillMounted string `json:"still_mounted,omitempty"`

	// AnswersMS is the time that a check of all mounts took, in milliseconds. It is set if the
	// mounts are as they should be.
	AnswersMS float64 `json:"answers_ms,omitempty"`

	// Attempt is the current step of the volume, if it has one.
	Attempt *Attempt `json:"attempt,omitempty"`

	// The pending calls: calls that a forced command skipped and the agent must still make.
	PendingCalls []string `json:"pending_calls,omitempty"`

	// Modifying are the mutable parameters of a modify of which the agent has not seen the end. It
	// is unknown whether they apply.
	Modifying map[string]string `json:"modifying,omitempty"`

	// Report is the plugin's last report about the volume, if there is one.
	Report *Report `json:"report,omitempty"`

	// Notes are facts that a person should know, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// Attempt describes the current step of a volume and its progress.
type Attempt struct {
	Step string `json:"step"` // "NodeStageVolume", "wait"

	// Index and Of are the position of the step in the volume's life, as in 4 of 6; 0 is unknown.
	Index int    `json:"index,omitempty"`
	Of    int    `json:"of,omitempty"`
	Alloc string `json:"alloc,omitempty"` // the alloc of the claim, if the step belongs to one claim

	// Code is the name of the last failure's gRPC code. It is CodeHost if a step on this host
	// failed, and CodeUnverified if the plugin answered OK but this host shows otherwise.
	Code string `json:"code,omitempty"`

	// Unknown is set if it is uncertain whether the failed call had an effect. Unsent is set if the
	// call never reached the plugin.
	Unknown bool `json:"outcome_unknown,omitempty"`
	Unsent  bool `json:"unsent,omitempty"`

	// Message is the plugin's message, or the agent's if Code is CodeHost or CodeUnverified.
	Message string `json:"message,omitempty"`

	// Waits says why no step is tried now. Cause classifies the reason: halted, plugin, backoff,
	// foreign, hung, watch, debt, expand, invalid.
	Waits string    `json:"waits,omitempty"`
	Cause string    `json:"cause,omitempty"`
	Tries int       `json:"tries"`
	First time.Time `json:"first"`

	// Next is the time of the next try or, during a wait, the latest time at which the wait ends.
	// Zero means that the agent does not try again until something changes.
	Next    time.Time `json:"next,omitzero"`
	Running bool      `json:"running"`

	// Progress describes the progress of the running step in words, if the step reports any.
	Progress string `json:"progress,omitempty"`

	// Retry says which condition allows the next try: "backoff", "change" or "never".
	Retry string `json:"retry,omitempty"`
	Fix   string `json:"fix,omitempty"` // the command that solves the problem

	// Else is the command to use if Fix does not help.
	Else string `json:"else,omitempty"`

	// HeldBy names the processes that keep a mount busy ("pid 4711 rsync (backup.service), cwd").
	HeldBy []string `json:"held_by,omitempty"`

	// PluginLog holds the last lines that the plugin wrote. It is set if the call failed or the
	// plugin is not ready, and only in the answer about one volume.
	PluginLog []string `json:"plugin_log,omitempty"`
}

// Codes of an Attempt that are not gRPC codes.
const (
	CodeHost       = "Host"
	CodeUnverified = "Unverified"
)

// Stats is the plugin's report about the usage of a volume. Values that it does not report are 0.
type Stats struct {
	Volume          string    `json:"volume"`
	At              time.Time `json:"at,omitzero"` // the time of the report
	BytesTotal      int64     `json:"bytes_total"`
	BytesUsed       int64     `json:"bytes_used"`
	BytesAvailable  int64     `json:"bytes_available"`
	InodesTotal     int64     `json:"inodes_total"`
	InodesUsed      int64     `json:"inodes_used"`
	InodesAvailable int64     `json:"inodes_available"`
}
