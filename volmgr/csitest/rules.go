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

// Rule is a rule of the CSI spec that the callers of plugins must obey.
type Rule string

// The rules for callers. Some rules require that an earlier step has been completed. A step counts
// as completed only if the caller received the OK answer in time. Without such an answer, the step
// may or may not have been completed.
const (
	RuleDeadline   Rule = "deadline"   // every call has a deadline
	RuleOffered    Rule = "offered"    // calls and fields are used only if the plugin has the matching capability
	RuleRequired   Rule = "required"   // all fields that the spec requires are set
	RuleSize       Rule = "size"       // strings and paths have at most 128 bytes, maps 4 KiB, and node ids 256 bytes
	RulePath       Rule = "path"       // all paths are absolute
	RuleCapability Rule = "capability" // the capability is valid, the plugin knows it, and stage and publish use the same one
	RuleSecrets    Rule = "secrets"    // the caller passes the secrets in Config.WantSecrets

	RuleVolumeContext  Rule = "volume-context"  // the caller passes the context that CreateVolume returned
	RulePublishContext Rule = "publish-context" // the caller passes the context that ControllerPublish returned, or none if the plugin lacks this call
	RuleNode           Rule = "node"            // the node id comes from NodeGetInfo, or is that of a node to which the volume is connected

	RuleInFlight Rule = "in-flight" // only one call runs for a volume at a time
	// The steps have this order: ControllerPublish, stage, publish, unpublish of all targets,
	// unstage, ControllerUnpublish, delete. The controller expands a volume before the node does.
	RuleOrder       Rule = "order"
	RuleStagingPath Rule = "staging-path" // each volume has its own staging path, and only one
	RuleStagingDir  Rule = "staging-dir"  // the caller creates the staging directory before NodeStage
	RuleTarget      Rule = "target"       // the caller creates the parent directory but not the target, and only one volume uses the target
	RuleMode        Rule = "mode"         // an access mode for a single target permits no second target
	RuleInUse       Rule = "in-use"       // no call unstages or disconnects storage that is mounted when the call takes effect
	// No call makes a state that an earlier call may still undo after its caller gave up.
	RuleOvertaken Rule = "overtaken"
	RuleOffline   Rule = "offline" // an OFFLINE plugin expands only volumes that are not in use
	RuleToken     Rule = "token"   // a starting_token comes from an answer of the same method

	RuleTopology Rule = "topology" // a CreateVolume requests a topology, and a repeated CreateVolume requests the same one

	// RuleControl does not concern the caller. It means that the test has written an invalid
	// control file.
	RuleControl Rule = "control"
)

// Violation describes how a call broke a rule.
type Violation struct {
	Rule   Rule      `json:"rule"`
	Words  string    `json:"words"` // describes the mistake and the correct behavior
	Time   time.Time `json:"time"`
	Seq    int64     `json:"seq"` // number of the call
	Method string    `json:"method"`
	Volume string    `json:"volume,omitempty"`
}

// String formats the violation as one line for the log of a test.
func (v Violation) String() string {
	return fmt.Sprintf("call %d %s %s breaks rule %s: %s", v.Seq, v.Method, v.Volume, v.Rule, v.Words)
}

// check examines one call. At this time, the view does not include the call yet.
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

// rulesBroken checks a call against the state of the volumes as far as the caller knows it.
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

// atPath reports whether the requests of a method have a volume_path, at which the volume must be
// staged or published.
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

// contexts checks the contexts and secrets, which the caller must pass on unchanged. The text of a
// violation contains no values of secrets.
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
