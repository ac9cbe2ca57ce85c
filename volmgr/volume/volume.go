package volume

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/bytesize"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
)

// Volume describes a storage volume. It contains no data about mounts on this host.
type Volume struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	PluginID   string `json:"plugin_id"`
	Driver     string `json:"driver"`      // name of the CSI driver; unique on a host together with ExternalID
	ExternalID string `json:"external_id"` // CSI volume_id; empty until the volume is created

	SnapshotID  string `json:"snapshot_id,omitempty"`
	CloneID     string `json:"clone_id,omitempty"`
	CapacityMin int64  `json:"capacity_min,omitempty"` // requested size in bytes; 0 means any
	CapacityMax int64  `json:"capacity_max,omitempty"`
	Capacity    int64  `json:"capacity,omitempty"` // size in bytes that the plugin provided; 0 means unknown

	Capabilities []call.Capability    `json:"capabilities"`
	MountOptions call.MountOptions    `json:"mount_options,omitzero"`
	Topology     call.TopologyRequest `json:"topology_request,omitzero"`
	Topologies   []map[string]string  `json:"topologies,omitempty"` // CSI accessible_topology, as the plugin returned it

	// TopologySent is the topology in the CreateVolume call, until the outcome of this call is
	// known. It equals Topology if the user requested a topology. Otherwise it is the default
	// topology.
	TopologySent call.TopologyRequest      `json:"topology_sent,omitzero"`
	Parameters   map[string]string         `json:"parameters,omitempty"`
	Mutable      map[string]string         `json:"mutable_parameters,omitempty"` // current values, as far as the agent knows
	Context      map[string]string         `json:"context,omitempty"`
	Secrets      map[string]call.SecretRef `json:"secrets,omitempty"`
	Reclaim      string                    `json:"reclaim,omitempty"`

	// Class is the class that the volume was created with. It only informs people and recognises a
	// repeated create. It is empty for other volumes, and in a record that an older agent has
	// written since. In a request to create a volume, the other fields already have the values of
	// the class.
	Class string `json:"class,omitempty"`

	// Modifying holds the new values of mutable parameters, if a modify may not have finished. Each
	// of these parameters has either its value in Mutable or its value here.
	Modifying map[string]string `json:"modifying,omitempty"`

	// Shared is set if the hosts of a cluster share the volume. The cluster's store then has the
	// definition, and a host uses the volume only while it has a hold.
	Shared bool `json:"shared,omitempty"`

	// Boot is BootWait or BootTrustLocal. It decides whether a host can mount a shared volume after a
	// reboot if the cluster does not answer.
	Boot string `json:"boot,omitempty"`

	// Takeover decides whether another host can take a shared volume over from a lost host.
	Takeover Takeover `json:"takeover,omitempty"`

	// AnyScope is set in a request whose volume file has no scope. It is never stored.
	AnyScope bool `json:"-"`

	// Created is set if this agent created the volume. It is not set for a registered volume.
	Created bool `json:"created,omitempty"`

	// Provision is the intent of an unfinished create or delete.
	Provision Provision `json:"provision,omitempty"`

	// Expansion is a requested expansion that has not finished.
	Expansion Expansion `json:"expansion,omitzero"`

	// Growth is only set for a shared volume. In the record of a host, it is the last growth that
	// the host has seen.
	Growth Growth `json:"growth,omitzero"`

	RegisteredAt time.Time `json:"registered_at"`
}

// Provision is the state of a volume at its controller.
type Provision string

// These are the values of Provision. The zero value means that the volume exists.
const (
	Provisioned  Provision = ""
	Provisioning Provision = "creating"
	Deleting     Provision = "deleting"
)

// TopologyToSend returns the topology for the CreateVolume call of a request. The parameter had is
// the record of an earlier create that the request may continue. The call then repeats the topology
// of the earlier create. TopologySent is empty in the record of an older release, because that
// release sent no default topology.
func (v Volume) TopologyToSend(p plugin.Info, had Volume) call.TopologyRequest {
	switch {
	case v.Topology.Given():
		return v.Topology
	case had.Provision != Provisioning:
		return p.DefaultTopology()
	case had.TopologySent.Given():
		return had.TopologySent
	default:
		return had.Topology
	}
}

// CheckCloneSource returns an error if this host cannot reach the volume. In that case, a clone
// with the default topology is not possible.
func (v Volume) CheckCloneSource(p plugin.Info) error {
	from := v.outOfReach(p)
	if from == "" {
		return nil
	}
	return Errorf(ErrRefused, "cannot clone volume %q for this host: it can be reached from %s, and this host is at %s",
		v.ID, from, segments(p.Topology)).WithHint("give the clone a topology_request, or create it on a host that reaches the volume")
}

// CheckHost returns an error if no claim on this host can use the volume, because the plugin has no node
// service here or cannot reach the volume from here.
func (v Volume) CheckHost(p plugin.Info) error {
	if p.Driver != "" && !p.HasNode {
		return Errorf(ErrRefused, "volume %q cannot be mounted: plugin %q has no node service", v.ID, v.PluginID).
			WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
	}
	return v.reaches(p)
}

// reaches returns an error if the plugin cannot reach the volume from this host (CSI
// accessible_topology). It returns nil if the topology of the volume or of the node is unknown. For
// example, the agent does not know the topology of a node part that it has never asked.
func (v Volume) reaches(p plugin.Info) error {
	from := v.outOfReach(p)
	if from == "" {
		return nil
	}
	return Errorf(ErrRefused, "volume %q cannot be mounted on this host: it can be reached from %s, and this host is at %s",
		v.ID, from, segments(p.Topology)).WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
}

// outOfReach describes the topology segments from which a node can reach the volume, if this host
// is in none of them. Otherwise it returns "".
func (v Volume) outOfReach(p plugin.Info) string {
	if !p.Caps.Topology || len(p.Topology) == 0 || len(v.Topologies) == 0 {
		return ""
	}

	within := func(segments map[string]string) bool {
		for key, value := range segments {
			if !in(p.Topology, key, value) {
				return false
			}
		}

		return true
	}

	if slices.ContainsFunc(v.Topologies, within) {
		return ""
	}

	places := make([]string, len(v.Topologies))
	for i, t := range v.Topologies {
		places[i] = segments(t)
	}

	return strings.Join(places, ", or from ")
}

// in reports whether a topology contains a segment. The case of the key does not matter (CSI spec,
// Topology).
func in(topology map[string]string, key, value string) bool {
	for k, have := range topology {
		if strings.EqualFold(k, key) {
			return have == value
		}
	}
	return false
}

// segments formats a topology as a text.
func segments(t map[string]string) string {
	words := make([]string, 0, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		words = append(words, key+"="+t[key])
	}
	return strings.Join(words, " ")
}

// namesMost is the maximum number of volumes that the message of a refusal names.
const namesMost = 5

// createAgain returns the remedy that continues an unfinished create of a volume. Some settings
// have no flag and can come only from a volume file. With such settings, the repeated command also
// needs that file.
func (v Volume) createAgain() remedy.Remedy {
	shared := v.Boot != BootWait || v.Takeover != TakeoverProven
	if len(v.Capabilities) != 1 || len(v.Secrets) > 0 || v.Topology.Given() || v.CapacityMax > 0 || v.Reclaim == "delete" || shared {
		return remedy.Of(remedy.CreateFromFile)
	}

	c := v.Capabilities[0]
	subjects := []string{v.ID, "--plugin=" + v.PluginID}
	add := func(name, value string, not ...string) {
		if value != "" && !slices.Contains(not, value) {
			subjects = append(subjects, "--"+name+"="+value)
		}
	}

	if v.CapacityMin > 0 {
		add("size", Size(v.CapacityMin))
	}

	for _, k := range slices.Sorted(maps.Keys(v.Parameters)) {
		add("param", k+"="+v.Parameters[k])
	}

	for _, k := range slices.Sorted(maps.Keys(v.Mutable)) {
		add("mutable-param", k+"="+v.Mutable[k])
	}

	add("access-mode", string(c.Access), string(call.SingleNodeWriter))
	add("attachment-mode", string(c.Attachment), string(call.FileSystem))
	add("fs-type", v.MountOptions.FSType)
	for _, flag := range v.MountOptions.MountFlags {
		add("mount-flag", flag)
	}

	add("snapshot", v.SnapshotID)
	add("clone", v.CloneID)
	return remedy.Of(remedy.CreateAgain, subjects...)
}

// checkSecrets returns an error if a reference to a secret does not have exactly one source.
func (v Volume) checkSecrets() error {
	for _, name := range slices.Sorted(maps.Keys(v.Secrets)) {
		switch ref := v.Secrets[name]; {
		case ref.Sources() == 0:
			return Errorf(ErrInvalid, "secret %q of volume %q names no source", name, v.ID).
				WithHint("the value itself, or one of {file: PATH}, {credential: NAME}, {env: NAME}")
		case ref.Sources() > 1:
			return Errorf(ErrInvalid, "secret %q of volume %q names more than one source", name, v.ID)
		case len(ref.Literal.Reveal()) > call.MaxSecret:
			return Errorf(ErrInvalid, "secret %q of volume %q is longer than %d bytes", name, v.ID, call.MaxSecret)
		}
	}

	return nil
}

// Keeping returns the volume with the sealed values that it already has. If Keep is set in a
// reference to a secret, Keeping replaces the reference with the sealed value in had. It returns an
// error if had contains no such value.
func (v Volume) Keeping(had map[string]call.SecretRef) (Volume, error) {
	refs := maps.Clone(v.Secrets)
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if !refs[name].Keep {
			continue
		}
		if had[name].Sealed == "" {
			return v, Errorf(ErrRefused, "cannot keep secret %q of volume %q: the agent has no sealed value of it", name, v.ID).
				WithHint("give the value itself, or one of {file: PATH}, {credential: NAME}, {env: NAME}")
		}

		refs[name] = call.SecretRef{Sealed: had[name].Sealed}
	}

	v.Secrets = refs
	return v, nil
}

// Expansion is an unfinished expansion of a volume. First, ControllerExpandVolume enlarges the
// storage. Then NodeExpandVolume enlarges the contents on this host, such as the file system. The
// agent stores the requested size before each call, so a crash does not lose the size. The agent
// also keeps the sizes while the volume is not mounted.
//
//	Expand ──► Want ──ControllerExpandVolume──► Node ──NodeExpandVolume──► (over)
//	             │ final refusal                 │ final refusal
//	             ▼                               ▼
//	          Refused, over                   Refused; once more at the next mount
type Expansion struct {
	// Want is the size in bytes to request from the controller. It becomes 0 when the controller
	// has answered.
	Want int64 `json:"want,omitempty"`

	// Offline is set together with Want if the plugin expands only volumes that are not in use.
	// When the user requested the expansion, the volume had no side on the host. Until the
	// expansion ends, the agent does not connect or mount the volume.
	Offline bool `json:"offline,omitempty"`

	// Node is the size in bytes to request from the node service. It is 0 if no such request is
	// needed.
	Node int64 `json:"node,omitempty"`

	// Refused is the refusal that ended the last expansion. The next expansion clears it.
	Refused Refusal `json:"refused,omitzero"`
}

// Refusal is the final answer of a plugin that refused an expansion.
type Refusal struct {
	Step    call.Method `json:"step"` // ControllerExpand or NodeExpand
	Size    int64       `json:"size"` // requested size in bytes
	Code    string      `json:"code"`
	Message string      `json:"message"`
}

// Err returns the refusal as a CallError.
func (f Refusal) Err() *CallError {
	return &CallError{Step: string(f.Step), Code: f.Code, Message: f.Message, Retry: RetryChange, Answered: true}
}

// Size returns a number of bytes in the format of volume files, without rounding.
func Size(bytes int64) string { return bytesize.Format(bytes) }

// CheckLimits returns an error if a new volume has values that exceed the limits of CSI. The agent
// does not check stored volumes.
func (v Volume) CheckLimits() error {
	bad := []string{
		TooLong("external_id", v.ExternalID, MaxHandle), TooLong("snapshot_id", v.SnapshotID, MaxHandle), TooLong("clone_id", v.CloneID, MaxHandle),
		TooLarge("parameters", v.Parameters), TooLarge("mutable_parameters", v.Mutable), TooLarge("context", v.Context),
	}

	for _, words := range bad {
		if words != "" {
			return Errorf(ErrInvalid, "volume %q cannot be handed to a plugin: %s", v.ID, words)
		}
	}

	return nil
}
