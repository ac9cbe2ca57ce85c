package api

import "time"

// VolumeSpec is what a volume file says, field for field.
type VolumeSpec struct {
	ID         string `json:"id" yaml:"id"`
	Name       string `json:"name,omitempty" yaml:"name,omitempty"`
	PluginID   string `json:"plugin_id" yaml:"plugin_id"`
	ExternalID string `json:"external_id,omitempty" yaml:"external_id,omitempty"`
	// SnapshotID and CloneID name the source that a created volume is filled
	// from; at most one of them is set.
	SnapshotID string `json:"snapshot_id,omitempty" yaml:"snapshot_id,omitempty"`
	CloneID    string `json:"clone_id,omitempty" yaml:"clone_id,omitempty"`
	// CapacityMin and CapacityMax are bytes; 0 leaves the bound to the plugin.
	CapacityMin  int64             `json:"capacity_min,omitempty" yaml:"capacity_min,omitempty"`
	CapacityMax  int64             `json:"capacity_max,omitempty" yaml:"capacity_max,omitempty"`
	Capabilities []Capability      `json:"capabilities,omitempty" yaml:"capabilities,omitempty"`
	MountOptions *MountOptions     `json:"mount_options,omitempty" yaml:"mount_options,omitempty"`
	Topology     *TopologyRequest  `json:"topology_request,omitempty" yaml:"topology_request,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty" yaml:"parameters,omitempty"`
	// Mutable are parameters that can change later. Those that are left out stay
	// as they are.
	Mutable map[string]string `json:"mutable_parameters,omitempty" yaml:"mutable_parameters,omitempty"`
	Context map[string]string `json:"context,omitempty" yaml:"context,omitempty"`
	Secrets map[string]Secret `json:"secrets,omitempty" yaml:"secrets,omitempty"`
	Reclaim string            `json:"reclaim,omitempty" yaml:"reclaim,omitempty"` // "retain" (default) or "delete"
}

// Capability is one way in which a volume may be claimed.
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

// Secret says what a secret's value is: where it is to be read when a call needs
// it, or the value itself, which the agent stores encrypted. One field is set.
type Secret struct {
	File       string `json:"file,omitempty" yaml:"file,omitempty"`             // absolute path on the agent's host
	Credential string `json:"credential,omitempty" yaml:"credential,omitempty"` // a systemd credential of the agent's unit
	Env        string `json:"env,omitempty" yaml:"env,omitempty"`               // a variable of the agent's environment
	// Literal is the value itself. It is in requests alone; there a plain JSON
	// string means the same.
	Literal Literal `json:"literal,omitzero" yaml:"-"`
	// Sealed says in an answer that the agent has the value, encrypted; in a
	// request, that it is to keep the one it has.
	Sealed bool `json:"sealed,omitempty" yaml:"sealed,omitempty"`
}

// VolumeResult says what a register, create or modify did.
type VolumeResult struct {
	// Outcome is "created", "registered", "updated", "modified" or "unchanged", of an
	// expand "expanded", "expanding" (it goes on by itself) or "unchanged"; with
	// dry_run it is what would have been done.
	Outcome string `json:"outcome"`
	// Changes names the fields that an update changed, "field: old → new".
	Changes []string `json:"changes,omitempty"`
	// Warnings are what a person has to see to elsewhere. The agent gives none;
	// volctl does, for volumes that were taken over from others.
	Warnings []string `json:"warnings,omitempty"`
	Volume   Volume   `json:"volume"`
}

// ExpandRequest asks for a volume of a larger size.
type ExpandRequest struct {
	CapacityMin int64 `json:"capacity_min"` // bytes
}

// Expansion is the growth of a volume that was asked for and is not over.
type Expansion struct {
	// Want is what the controller is asked for, in bytes; 0: it answered, or refused.
	Want int64 `json:"want,omitempty"`
	// Node is what the node service is still to be told of, in bytes, when the
	// volume is mounted: what is on the storage is smaller until then.
	Node int64 `json:"node,omitempty"`
	// Refused is why it goes no further, in words.
	Refused string `json:"refused,omitempty"`
}

// DeregisterResult says what a deregister leaves on the host.
type DeregisterResult struct {
	// Left is empty unless force was needed: paths that are still mounted,
	// devices that are still attached, volumes that still exist at the plugin.
	Left []string `json:"left,omitempty"`
}

// Volume states as people see them.
const (
	StateFree      = "free"
	StateMounting  = "mounting"
	StateMounted   = "mounted"
	StateDegraded  = "degraded"
	StateReleasing = "releasing"
	StateStuck     = "stuck"
)

// Volume is a volume as the agent knows it.
type Volume struct {
	Spec VolumeSpec `json:"spec"`
	// State is one of the State constants; Summary says it in a few words
	// ("mounted, writable", "stuck: unmounting").
	State   string `json:"state"`
	Summary string `json:"summary"`
	// Driver is the CSI driver's own name, as in "local.csi.volagent".
	Driver        string `json:"driver,omitempty"`
	PluginState   string `json:"plugin_state"`
	PluginVersion string `json:"plugin_version,omitempty"`
	// Created tells a volume that this agent created from one that existed.
	Created      bool                `json:"created"`
	Capacity     int64               `json:"capacity,omitempty"` // bytes; 0 is unknown
	Expansion    *Expansion          `json:"expansion,omitempty"`
	Topologies   []map[string]string `json:"topologies,omitempty"`
	RegisteredAt time.Time           `json:"registered_at"`

	// Mode is the mode in force while claims are held.
	Mode *Capability `json:"mode,omitempty"`
	// Controller says whether the volume is attached by the plugin's
	// controller before it is staged.
	Controller bool `json:"controller"`
	// Attached and Staged are "absent", "unknown", "failed" or "present".
	Attached    string  `json:"attached"`
	Staged      string  `json:"staged"`
	StagingPath string  `json:"staging_path,omitempty"`
	MountSource string  `json:"mount_source,omitempty"`
	FSType      string  `json:"fs_type,omitempty"`
	Claims      []Claim `json:"claims"`
	// DataSafe and StillMounted are "yes", "no" or "unknown". They are set while the
	// volume is stuck or degraded, and while its data is not safe. DataSafe is "no" if the
	// plugin says that data is lost or may be, and "yes" if nothing that is known
	// endangers it.
	DataSafe     string `json:"data_safe,omitempty"`
	StillMounted string `json:"still_mounted,omitempty"`
	// AnswersMS is how long a look at all of its mounts took, in milliseconds,
	// where they are as they should be.
	AnswersMS float64 `json:"answers_ms,omitempty"`
	// Attempt is the step the volume is at, if it has one to do.
	Attempt *Attempt `json:"attempt,omitempty"`
	// Debts are calls that were skipped by force and are still owed.
	Debts []string `json:"debts,omitempty"`
	// Modifying are mutable parameters of a modify that was not seen to end: whether
	// they are in force is not known.
	Modifying map[string]string `json:"modifying,omitempty"`
	// Report is what the plugin said of the volume when it was last asked, if it was.
	Report *Report `json:"report,omitempty"`
	// Notes are what a person should know, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// Attempt describes the step that a volume is at and how it went so far.
type Attempt struct {
	Step string `json:"step"` // "NodeStageVolume", "wait"
	// Index and Of place the step in the volume's way, as in 4 of 6; 0 is unknown.
	Index int    `json:"index,omitempty"`
	Of    int    `json:"of,omitempty"`
	Alloc string `json:"alloc,omitempty"` // whose step it is, where it is one claim's
	// Code is the gRPC code of the last failure, by name. It is CodeHost where a
	// step on this host failed, and CodeUnverified where the plugin answered OK and
	// this host shows otherwise.
	Code string `json:"code,omitempty"`
	// Unknown is set where it is open whether the failed call had an effect, Unsent
	// where it never got to the plugin.
	Unknown bool `json:"outcome_unknown,omitempty"`
	Unsent  bool `json:"unsent,omitempty"`
	// Message is the plugin's words, or this agent's where the code says so.
	Message string `json:"message,omitempty"`
	// Waits says what is waited for, where no step is tried; Cause classes it:
	// halted, plugin, backoff, foreign, hung, watch, debt, expand, invalid.
	Waits string    `json:"waits,omitempty"`
	Cause string    `json:"cause,omitempty"`
	Tries int       `json:"tries"`
	First time.Time `json:"first"`
	// Next is when it is tried again or, while it waits, when that ends at the
	// latest. Zero: not by itself, something must change.
	Next    time.Time `json:"next,omitzero"`
	Running bool      `json:"running"`
	// Progress is how far the step in hand is, in words, where it says so.
	Progress string `json:"progress,omitempty"`
	// Retry says what lets it go on: "backoff", "change" or "never".
	Retry string `json:"retry,omitempty"`
	Fix   string `json:"fix,omitempty"` // the command that helps
	// Else is the command for when Fix does not help.
	Else string `json:"else,omitempty"`
	// HeldBy names who keeps a mount busy ("pid 4711 rsync (backup.service), cwd").
	HeldBy []string `json:"held_by,omitempty"`
	// PluginLog are the last lines that the plugin wrote, where the call to it
	// failed or it is not ready; in the answer about one volume only.
	PluginLog []string `json:"plugin_log,omitempty"`
}

// Codes of an Attempt that are not gRPC's.
const (
	CodeHost       = "Host"
	CodeUnverified = "Unverified"
)

// Stats is what the plugin says of a volume's use; absent values are 0.
type Stats struct {
	Volume          string    `json:"volume"`
	At              time.Time `json:"at,omitzero"` // when the plugin said so
	BytesTotal      int64     `json:"bytes_total"`
	BytesUsed       int64     `json:"bytes_used"`
	BytesAvailable  int64     `json:"bytes_available"`
	InodesTotal     int64     `json:"inodes_total"`
	InodesUsed      int64     `json:"inodes_used"`
	InodesAvailable int64     `json:"inodes_available"`
}
