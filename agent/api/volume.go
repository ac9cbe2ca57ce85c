package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// VolumeSpec has the same fields as a volume file.
type VolumeSpec struct {
	ID       string `json:"id" yaml:"id"`
	Name     string `json:"name,omitempty" yaml:"name,omitempty"`
	PluginID string `json:"plugin_id" yaml:"plugin_id"`

	// Class names the class of a volume to create. The class supplies the plugin, and every other
	// field that the request leaves out. Class occurs only in requests.
	Class      string `json:"class,omitempty" yaml:"class,omitempty"`
	ExternalID string `json:"external_id,omitempty" yaml:"external_id,omitempty"`

	// SnapshotID and CloneID name the snapshot or the volume from which a created volume gets its
	// data. At most one of them is set.
	SnapshotID string `json:"snapshot_id,omitempty" yaml:"snapshot_id,omitempty"`
	CloneID    string `json:"clone_id,omitempty" yaml:"clone_id,omitempty"`

	// CapacityMin and CapacityMax are in bytes. Zero means that the plugin chooses the limit.
	CapacityMin  int64             `json:"capacity_min,omitempty" yaml:"capacity_min,omitempty"`
	CapacityMax  int64             `json:"capacity_max,omitempty" yaml:"capacity_max,omitempty"`
	Capabilities []Capability      `json:"capabilities,omitempty" yaml:"capabilities,omitempty"`
	MountOptions *MountOptions     `json:"mount_options,omitempty" yaml:"mount_options,omitempty"`
	Topology     *TopologyRequest  `json:"topology_request,omitempty" yaml:"topology_request,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty" yaml:"parameters,omitempty"`

	// Mutable contains parameters that can change later. An update keeps the parameters that it
	// does not name.
	Mutable map[string]string `json:"mutable_parameters,omitempty" yaml:"mutable_parameters,omitempty"`
	Context map[string]string `json:"context,omitempty" yaml:"context,omitempty"`
	Secrets map[string]Secret `json:"secrets,omitempty" yaml:"secrets,omitempty"`
	Reclaim string            `json:"reclaim,omitempty" yaml:"reclaim,omitempty"` // ReclaimRetain (the default) or ReclaimDelete
	Scope   string            `json:"scope,omitempty" yaml:"scope,omitempty"`     // ScopeHost (the default) or ScopeShared
	Boot    string            `json:"boot,omitempty" yaml:"boot,omitempty"`       // BootWait (the default) or BootTrustLocal

	// Takeover is TakeoverProven (the default) or TakeoverNever.
	Takeover string `json:"takeover,omitempty" yaml:"takeover,omitempty"`
}

// The values of a volume's Takeover. They matter if a host that holds a shared volume is lost. With
// TakeoverProven, another host takes the volume over as soon as it is proven that the lost host no
// longer writes. With TakeoverNever, the volume waits for the lost host.
const (
	TakeoverProven = "proven"
	TakeoverNever  = "never"
)

// The values of a volume's Boot. They matter if a host has rebooted and the cluster's etcd does not
// answer. With BootWait, the host waits for an answer. With BootTrustLocal, it uses the hold that its own
// records show.
const (
	BootWait       = "wait"
	BootTrustLocal = "trust-local"
)

// The values of a volume's Scope. A volume with the scope host belongs to one host. A volume with the
// scope shared belongs to all hosts of a cluster.
const (
	ScopeHost   = "host"
	ScopeShared = "shared"
)

// The values of a volume's Reclaim. They decide what happens to the data when the last container
// runtime that knows the volume removes it.
const (
	ReclaimRetain = "retain"
	ReclaimDelete = "delete"
)

// MountOptions are the options that the agent passes to the plugin for volumes with a file system.
type MountOptions struct {
	FSType     string   `json:"fs_type,omitempty" yaml:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty" yaml:"mount_flags,omitempty"`
}

// TopologyRequest restricts the topology segments from which a created volume must be reachable.
// The plugin must respect Required, and should respect Preferred.
type TopologyRequest struct {
	Required  []map[string]string `json:"required,omitempty" yaml:"required,omitempty"`
	Preferred []map[string]string `json:"preferred,omitempty" yaml:"preferred,omitempty"`
}

// Secret contains the value of a secret, or names the source from which the agent reads the value
// for each call. The agent encrypts a value before storage. Exactly one field is set.
type Secret struct {
	File       string `json:"file,omitempty" yaml:"file,omitempty"`             // an absolute path on the agent's host
	Credential string `json:"credential,omitempty" yaml:"credential,omitempty"` // a systemd credential of the agent's unit
	Env        string `json:"env,omitempty" yaml:"env,omitempty"`               // a variable of the agent's environment

	// Literal is the value itself. It occurs only in requests. A plain JSON string has the same
	// meaning.
	Literal Literal `json:"literal,omitzero" yaml:"-"`

	// Sealed in an answer means that the agent has stored the encrypted value. In a request it
	// tells the agent to keep the stored value.
	Sealed bool `json:"sealed,omitempty" yaml:"sealed,omitempty"`
}

// The outcomes of a request that registers, creates, modifies or expands a volume, or registers a
// plugin.
const (
	OutcomeCreated    = "created"
	OutcomeRegistered = "registered"
	OutcomeUpdated    = "updated"
	OutcomeModified   = "modified"
	OutcomeExpanded   = "expanded"
	OutcomeExpanding  = "expanding" // the agent continues in the background
	OutcomeWithdrawn  = "withdrawn" // the request cancelled an expansion
	OutcomeUnchanged  = "unchanged"
	OutcomeShared     = "shared"
	OutcomeUnshared   = "unshared"
)

// VolumeResult is the result of a request that registers, creates, modifies or expands a volume.
type VolumeResult struct {
	// Outcome is one of the constants above. With dry_run, it predicts the outcome.
	Outcome string `json:"outcome"`

	// Changes lists the fields that an update changed, in the form "field: old → new".
	Changes []string `json:"changes,omitempty"`

	// Warnings describe work that a person must do on other systems. The agent sends no warnings.
	// volctl adds warnings for volumes that it imports from other systems.
	Warnings []string `json:"warnings,omitempty"`
	Volume   Volume   `json:"volume"`
}

// ExpandRequest asks for a larger volume.
type ExpandRequest struct {
	CapacityMin int64 `json:"capacity_min"` // in bytes
}

// Expansion describes an incomplete expansion of a volume.
type Expansion struct {
	// Want is the size, in bytes, that the agent requests from the controller. It is zero after the
	// controller has answered or refused.
	Want int64 `json:"want,omitempty"`

	// Node is the size, in bytes, for a NodeExpandVolume call that the agent must still make. The
	// agent makes the call when the volume is mounted. Until then the file system is smaller than
	// the storage.
	Node int64 `json:"node,omitempty"`

	// Refused is the reason why the expansion stopped.
	Refused string `json:"refused,omitempty"`
}

// DeregisterResult lists the leftovers of a deregistered volume.
type DeregisterResult struct {
	// Left is empty unless the volume was deregistered by force. It names paths that are still
	// mounted, devices that are still attached, and volumes that the plugin still has.
	Left []string `json:"left,omitempty"`
}

// The states of a volume, as the API and volctl show them.
const (
	StateFree      = "free"
	StateMounting  = "mounting"
	StateMounted   = "mounted"
	StateDegraded  = "degraded"
	StateDetaching = "detaching"
	StateStuck     = "stuck"
)

// The values of DataSafe and StillMounted.
const (
	Yes     = "yes"
	No      = "no"
	Unknown = "unknown"
)

// Volume is a volume that the agent knows.
type Volume struct {
	Spec VolumeSpec `json:"spec"`

	// State is one of the State constants. Summary describes the state in a few words ("mounted,
	// writable", "stuck: unmounting").
	State   string `json:"state"`
	Summary string `json:"summary"`

	// Driver is the name that the CSI driver reports for itself, such as "local.csi.volagent".
	Driver        string `json:"driver,omitempty"`
	PluginState   string `json:"plugin_state"`
	PluginVersion string `json:"plugin_version,omitempty"`

	// Created is set if this agent created the volume. It is not set if the volume existed before
	// it was registered.
	Created bool `json:"created"`

	// Class is the class that the volume was created with. It is empty if the volume was created
	// without a class or registered.
	Class        string              `json:"class,omitempty"`
	Capacity     int64               `json:"capacity,omitempty"` // in bytes; 0 means unknown
	Expansion    *Expansion          `json:"expansion,omitempty"`
	Topologies   []map[string]string `json:"topologies,omitempty"`
	RegisteredAt time.Time           `json:"registered_at"`

	// Mode is the mode in which the present claims use the volume.
	Mode *Capability `json:"mode,omitempty"`

	// Controller is set if the plugin's controller must connect the volume to this host before the
	// volume is staged.
	Controller bool `json:"controller"`

	// Attached and Staged are "absent", "unknown", "failed" or "present".
	Attached    string  `json:"attached"`
	Staged      string  `json:"staged"`
	StagingPath string  `json:"staging_path,omitempty"`
	MountSource string  `json:"mount_source,omitempty"`
	FSType      string  `json:"fs_type,omitempty"`
	Claims      []Claim `json:"claims"`

	// DataSafe and StillMounted are Yes, No or Unknown. They are set only while the volume is stuck
	// or degraded, or while its data is not safe. DataSafe is No if the plugin reports that data is
	// or may be lost. DataSafe is Yes if no known problem endangers the data.
	DataSafe     string `json:"data_safe,omitempty"`
	StillMounted string `json:"still_mounted,omitempty"`

	// AnswersMS is the time in milliseconds that a check of all mounts took. It is set only if all
	// mounts are correct.
	AnswersMS float64 `json:"answers_ms,omitempty"`

	// Attempt describes the current step of the volume, if there is one.
	Attempt *Attempt `json:"attempt,omitempty"`

	// PendingCalls describes the calls that a forced command skipped and that the agent must still
	// make.
	PendingCalls []string `json:"pending_calls,omitempty"`

	// Modifying contains the mutable parameters of a modification whose completion the agent has
	// not seen. The parameters may or may not be in effect.
	Modifying map[string]string `json:"modifying,omitempty"`

	// Report is the plugin's last report about the volume, if there is one.
	Report *Report `json:"report,omitempty"`

	// Notes are facts for the operator, in one sentence each.
	Notes []string `json:"notes,omitempty"`

	// These fields are set only in an answer to a request with cluster=true, by a host of a cluster.
	// Scope is ScopeHost or ScopeShared. Holds are the hosts that hold a shared volume. ClusterCall is
	// the controller call in flight for the volume.
	Scope       string       `json:"scope,omitempty"`
	Holds       []Hold       `json:"holds,omitempty"`
	ClusterCall *ClusterCall `json:"cluster_call,omitempty"`
	TakenOver   *Takeover    `json:"taken_over,omitempty"`

	// Move is the move of a shared volume to another host. It is set only in an answer about a single
	// volume.
	Move *Move `json:"move,omitempty"`
}

// Attempt describes the current step of a volume and its progress.
type Attempt struct {
	Step string `json:"step"` // such as "NodeStageVolume" or "wait"

	// Index and Of give the position of the step in the sequence of steps for a volume, such as 4
	// of 6. Zero means unknown.
	Index int    `json:"index,omitempty"`
	Of    int    `json:"of,omitempty"`
	Alloc string `json:"alloc,omitempty"` // the alloc of the claim to which the step belongs, if any

	// Code is the gRPC code of the last failure. If a step on this host failed, Code is CodeHost.
	// If the plugin answered OK but the host does not show the effect, Code is CodeUnverified.
	Code string `json:"code,omitempty"`

	// Unknown is set if the failed call may or may not have taken effect. Unsent is set if the call
	// never reached the plugin.
	Unknown bool `json:"outcome_unknown,omitempty"`
	Unsent  bool `json:"unsent,omitempty"`

	// Message is the plugin's error message. If Code is CodeHost or CodeUnverified, Message is an
	// error message of the agent.
	Message string `json:"message,omitempty"`

	// Waits is the reason why the agent is not trying a step at the moment. Cause classifies the
	// reason, as one of the Cause constants.
	Waits string    `json:"waits,omitempty"`
	Cause string    `json:"cause,omitempty"`
	Tries int       `json:"tries"`
	First time.Time `json:"first"`

	// Next is the time of the next attempt. During a wait, it is the latest time at which the wait
	// ends. Zero means that the agent makes no further attempt until something changes.
	Next    time.Time `json:"next,omitzero"`
	Running bool      `json:"running"`

	// Progress describes the progress of the running step, if the step reports it.
	Progress string `json:"progress,omitempty"`

	// Retry is the condition for the next attempt, as one of the Retry constants.
	Retry string `json:"retry,omitempty"`
	Fix   string `json:"fix,omitempty"` // the command that solves the problem

	// Else is the command to use if Fix does not help.
	Else string `json:"else,omitempty"`

	// HeldBy describes the processes that keep a mount busy ("pid 4711 rsync (backup.service),
	// cwd").
	HeldBy []string `json:"held_by,omitempty"`

	// PluginLog contains the last lines of the plugin's log. It is set only in an answer about a
	// single volume, and only if the call failed or the plugin is not ready.
	PluginLog []string `json:"plugin_log,omitempty"`
}

// The causes of a wait.
const (
	CauseHalted   = "halted"  // the agent sends no calls to plugins
	CausePlugin   = "plugin"  // the plugin is not ready
	CauseBackoff  = "backoff" // the retry of a failed step is not due yet
	CauseForeign  = "foreign" // a mount without a record is in the way
	CauseHung     = "hung"    // a mount does not answer
	CauseWatch    = "watch"   // an earlier call may still have a late effect
	CauseLeftover = "debt"    // pending calls for the same storage must be made first
	CauseExpand   = "expand"  // the volume must be expanded first
	CauseOwner    = "owner"   // the owner of a claim has ended, and the agent will detach the claim
	CauseDown     = "down"    // the host is shutting down, and the volume is no longer mounted
	CauseInvalid  = "invalid" // the record holds a state that this release does not know
)

// The conditions for a retry of a failed step.
const (
	RetryBackoff = "backoff" // the agent retries after a pause
	RetryChange  = "change"  // the agent retries after something has changed
	RetryNever   = "never"
)

// The codes of an Attempt that are not gRPC codes.
const (
	CodeHost       = "Host"
	CodeUnverified = "Unverified"
)

// Stats is the plugin's report about the usage of a volume. A value that the plugin does not report
// is 0.
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

// Literal is the value of a secret in a request to the agent. The value is behind a pointer, so
// that print and log functions do not show it. Only the JSON encoding contains the value.
type Literal struct{ value *string }

// NewLiteral returns a Literal with the given value.
func NewLiteral(value string) Literal { return Literal{&value} }

// Reveal returns the value. It also reports whether there is a value.
func (l Literal) Reveal() (value string, ok bool) {
	if l.value == nil {
		return "", false
	}
	return *l.value, true
}

// String returns a mask instead of the value.
func (Literal) String() string { return "***" }

// GoString returns a mask instead of the value, for the verb %#v.
func (Literal) GoString() string { return "***" }

// MarshalJSON encodes the value itself. This is safe, because the JSON only goes to the agent over
// a local socket.
func (l Literal) MarshalJSON() ([]byte, error) { return json.Marshal(l.value) }

// UnmarshalJSON decodes the output of MarshalJSON.
func (l *Literal) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &l.value) }

// ErrSecret reports a value that cannot be a secret. Its message contains no part of the value.
var ErrSecret = errors.New("a secret is a text, or one of {file: PATH}, {credential: NAME}, {env: NAME}, {sealed: true}")

// UnmarshalJSON reads a plain string as a literal and rejects unknown keys. Its errors contain no
// part of the input.
func (s *Secret) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) > 0 && b[0] == '"' {
		if json.Unmarshal(b, &s.Literal) != nil {
			return ErrSecret
		}
		return nil
	}
	if len(b) == 0 || b[0] != '{' {
		return ErrSecret
	}

	type plain Secret
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode((*plain)(s)) != nil {
		return ErrSecret
	}
	return nil
}

// Report contains the plugin's most recent information about a volume.
type Report struct {
	Stats *Stats `json:"stats,omitempty"`

	// Health contains the problems that the plugin's services report. CheckedAt is the time of the
	// last answer of each service ("node", "controller"). If a service is missing in CheckedAt, it
	// cannot report or has not answered.
	Health    []Finding            `json:"health,omitempty"`
	CheckedAt map[string]time.Time `json:"checked_at,omitempty"`

	// Storage describes the volume as the plugin's controller reports it. It is set only if the
	// request asks for it.
	Storage *StorageVolume `json:"storage,omitempty"`

	// Silent lists the calls without a usable answer, each with the reason.
	Silent []string `json:"silent,omitempty"`
}
