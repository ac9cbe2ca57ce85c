package csitest

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// Rule is a rule of the CSI spec that callers of plugins must obey.
type Rule string

// The rules are listed below. Some rules require that an earlier step is complete. For them, only
// the answers that the caller received in time count. A call without such an answer may be
// complete.
const (
	RuleDeadline   Rule = "deadline"   // a call has a deadline
	RuleOffered    Rule = "offered"    // calls and fields require the matching capability of the plugin
	RuleRequired   Rule = "required"   // fields that the spec requires are set
	RuleSize       Rule = "size"       // the limits are 128 bytes for strings and paths, 4 KiB for maps, 256 bytes for node ids
	RulePath       Rule = "path"       // paths are absolute
	RuleCapability Rule = "capability" // the capability is valid, known to the plugin, and the same for stage and publish
	RuleSecrets    Rule = "secrets"    // the secrets are those of Config.WantSecrets

	RuleVolumeContext  Rule = "volume-context"  // the caller passes the context that CreateVolume returned
	RulePublishContext Rule = "publish-context" // the caller passes the context that ControllerPublish returned, and only if the plugin has that call
	RuleNode           Rule = "node"            // the node id comes from NodeGetInfo, or the volume is connected to it

	RuleInFlight    Rule = "in-flight"    // only one call at a time runs for a volume
	RuleOrder       Rule = "order"        // ControllerPublish, stage, publish, unpublish all, unstage, ControllerUnpublish, delete; the controller's expansion before the node's
	RuleStagingPath Rule = "staging-path" // each volume has one staging path of its own
	RuleStagingDir  Rule = "staging-dir"  // the caller creates the directory before NodeStage
	RuleTarget      Rule = "target"       // the caller creates the parent but not the target, and only one volume uses the target
	RuleMode        Rule = "mode"         // a mode for a single use permits no second target
	RuleInUse       Rule = "in-use"       // no call unstages or disconnects mounted storage, at once or later
	// No call creates something that an earlier, abandoned call may still undo.
	RuleOvertaken Rule = "overtaken"
	RuleOffline   Rule = "offline" // no OFFLINE expansion is requested while the volume is in use
	RuleToken     Rule = "token"   // a starting_token comes from an answer to the same method

	RuleTopology Rule = "topology" // a volume is created at the node or at the requested places, and a repeated CreateVolume names the same places

	// RuleControl does not concern the caller. It means that the control file of the test is
	// invalid.
	RuleControl Rule = "control"
)

// Violation reports that a call broke a rule.
type Violation struct {
	Rule   Rule      `json:"rule"`
	Words  string    `json:"words"` // describes the mistake and the correct behavior
	Time   time.Time `json:"time"`
	Seq    int64     `json:"seq"` // the Seq of the call
	Method string    `json:"method"`
	Volume string    `json:"volume,omitempty"`
}

// String formats the violation as one line for the log of a test.
func (v Violation) String() string {
	return fmt.Sprintf("call %d %s %s breaks rule %s: %s", v.Seq, v.Method, v.Volume, v.Rule, v.Words)
}

// check examines one call, before the view includes the call.
type check struct {
	cfg   Config
	view  view
	r     request
	found []Violation
}

func (c *check) report(rule Rule, format string, args ...any) {
	c.found = append(c.found, Violation{
		Rule: rule, Words: fmt.Sprintf(format, args...), Time: now(),
		Seq: c.r.call.Seq, Method: c.r.call.Method, Volume: c.r.call.Volume,
	})
}

// rulesBroken checks a call against the state that the caller knows.
func rulesBroken(ctx context.Context, cfg Config, v view, r request) []Violation {
	c := &check{cfg: cfg, view: v, r: r}
	if _, ok := ctx.Deadline(); !ok {
		c.report(RuleDeadline, "the call has no deadline")
	}

	c.fields()
	c.sizes()
	c.capabilities()
	c.contexts()
	c.storage()
	if r.call.Volume != "" {
		c.order()
	}

	return c.found
}

func (c *check) fields() {
	call := c.r.call
	s, known := shapes[call.Method]
	if !known || !s.offered(c.cfg) && !s.asks {
		c.report(RuleOffered, "the plugin has no capability for this call")
		return
	}

	for _, f := range []struct {
		needed bool
		name   string
		set    bool
	}{
		{s.name, "name", call.Name != ""},
		{s.volume, "volume_id", call.Volume != ""},
		{s.node, "node_id", call.NodeID != ""},
		{s.staging, "staging_target_path", call.StagingPath != ""},
		{s.target && !atPath(call.Method), "target_path", call.TargetPath != ""},
		{s.target && atPath(call.Method), "volume_path", call.TargetPath != ""},
		{s.snapshot, "snapshot_id", call.Snapshot != ""},
		{s.group, "group_snapshot_id", call.Group != ""},
		{s.capability, "volume_capability", len(c.r.capabilities) > 0},
		{call.Method == NodePublish && c.cfg.Stage, "staging_target_path", call.StagingPath != ""},
	} {
		if f.needed && !f.set {
			c.report(RuleRequired, "%s is not set", f.name)
		}
	}

	if c.r.create != nil {
		c.creation(c.r.create)
	}
	if call.Method == ControllerPublish && call.ReadOnly && !c.cfg.AttachReadOnly {
		c.report(RuleOffered, "readonly is set, but the plugin has no PUBLISH_READONLY")
	}

	for _, path := range []string{call.StagingPath, call.TargetPath} {
		if path != "" && !filepath.IsAbs(path) {
			c.report(RulePath, "%q is not absolute", path)
		}
	}
}

// atPath reports whether the request of a method has a volume_path, at which the volume must be
// present.
func atPath(method string) bool { return method == NodeStats || method == NodeExpand }

func (c *check) creation(m *csi.CreateVolumeRequest) {
	c.contentSource(m.GetVolumeContentSource())
	places, sent := c.r.call.Places, m.GetAccessibilityRequirements() != nil
	before, repeated := c.view.places[c.r.call.Name]

	switch {
	case sent && c.cfg.Topology == nil:
		c.report(RuleOffered, "accessibility_requirements is set, but the plugin has no VOLUME_ACCESSIBILITY_CONSTRAINTS")
	case repeated && places != before:
		c.report(RuleTopology, "accessibility_requirements is %q, but it was %q in a CreateVolume whose outcome is unknown", places, before)
	case !repeated && !sent && len(c.cfg.Topology) > 0:
		c.report(RuleTopology, "accessibility_requirements is not set, but the node is at %v", c.cfg.Topology)
	}
}

const (
	maxNodeID = 256
	maxMap    = 4 << 10
)

func (c *check) sizes() {
	call, longestPath := c.r.call, maxString
	if c.cfg.LongPaths {
		longestPath = unix.PathMax - 1
	}

	for _, f := range []struct {
		name, value string
		max         int
	}{
		{"volume_id", call.Volume, maxString},
		{"name", call.Name, maxString},
		{"node_id", call.NodeID, maxNodeID},
		{"staging_target_path", call.StagingPath, longestPath},
		{"target path", call.TargetPath, longestPath},
		{"snapshot_id", call.Snapshot, maxString},
		{"group_snapshot_id", call.Group, maxString},
	} {
		if len(f.value) > f.max {
			c.report(RuleSize, "%s has %d bytes, but plugins may refuse more than %d", f.name, len(f.value), f.max)
		}
	}

	for name, m := range map[string]map[string]string{
		"publish_context": call.PublishContext, "volume_context": call.VolumeContext,
		"secrets": c.r.secrets, "parameters": call.Parameters, "mutable_parameters": call.Mutable,
	} {
		size := 0
		for k, v := range m {
			size += len(k) + len(v)
		}

		if size > maxMap {
			c.report(RuleSize, "%s has %d bytes, but plugins may refuse more than %d", name, size, maxMap)
		}
	}
}

func (c *check) capabilities() {
	for _, one := range c.r.capabilities {
		mode := one.GetAccessMode().GetMode()
		if mode == csi.VolumeCapability_AccessMode_UNKNOWN {
			c.report(RuleCapability, "the access mode is not set")
		}
		if one.GetMount() == nil && one.GetBlock() == nil {
			c.report(RuleCapability, "the access type, mount or block, is not set")
		}
		if !c.cfg.MultiWriter && (mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER ||
			mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER) {
			c.report(RuleCapability, "%s is requested, but the plugin has no SINGLE_NODE_MULTI_WRITER", mode)
		}
		if one.GetMount().GetVolumeMountGroup() != "" && !c.cfg.MountGroup {
			c.report(RuleCapability, "volume_mount_group is set, but the plugin has no VOLUME_MOUNT_GROUP")
		}
	}
}

// contexts checks the data that the caller must pass on unchanged. The text of a violation contains
// no secret values.
func (c *check) contexts() {
	call := c.r.call
	if c.cfg.WantSecrets != nil && c.r.takesSecrets && !maps.Equal(c.r.secrets, c.cfg.WantSecrets) {
		c.report(RuleSecrets, "the secrets %q differ from the expected secrets %q in their keys or values",
			call.SecretKeys, slices.Sorted(maps.Keys(c.cfg.WantSecrets)))
	}
	if call.Volume == "" || !slices.Contains([]string{ControllerPublish, ValidateCapabilities, NodeStage, NodePublish}, call.Method) {
		return
	}

	vol := c.view.of(call.Volume)
	want := c.cfg.VolumeContext
	if vol.made != nil {
		want = vol.made
	}
	if want != nil && !maps.Equal(call.VolumeContext, want) {
		c.report(RuleVolumeContext, "the volume context is %v and must be %v", call.VolumeContext, want)
	}
	if call.Method != NodeStage && call.Method != NodePublish {
		return
	}

	switch a := vol.attached[c.cfg.NodeID]; {
	case !c.cfg.Attach && len(call.PublishContext) > 0:
		c.report(RulePublishContext, "the publish context is %v, but the plugin has no ControllerPublishVolume", call.PublishContext)
	case !c.cfg.Attach:
	case c.cfg.NoController && len(call.PublishContext) == 0:
		c.report(RulePublishContext, "the publish context is empty, but the plugin has ControllerPublishVolume")
	case a != nil && a.is == yes && !maps.Equal(call.PublishContext, a.given):
		c.report(RulePublishContext, "the publish context is %v and must be %v", call.PublishContext, a.given)
	}
}
