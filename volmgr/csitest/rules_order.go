package csitest

import (
	"maps"
	"slices"
	"strings"
)

// order checks that the caller has made the steps that must precede a call.
func (c *check) order() {
	vol := c.view.of(c.r.call.Volume)
	switch c.r.call.Method {
	case ControllerPublish:
		if n := c.r.call.NodeID; n != "" && n != c.cfg.NodeID && !c.cfg.NoNode {
			c.report(RuleNode, "the node id is %q and must be %q", n, c.cfg.NodeID)
		}
	case ControllerUnpublish:
		c.detach(vol)
	case DeleteVolume:
		if vol.inUse() {
			c.report(RuleOrder, "the volume is deleted while it is in use: %s", vol.use())
		}
	case NodeStage:
		c.attached(vol)
		c.onePath(vol)
		path := c.r.call.StagingPath
		if path != "" && !c.r.seen.stagingDir {
			c.report(RuleStagingDir, "the staging directory %q does not exist", path)
		}
		if other := c.view.stagedAt(path, c.r.call.Volume); other != "" {
			c.report(RuleStagingPath, "the staging path %q belongs to volume %q", path, other)
		}
	case NodeUnstage:
		c.onePath(vol)
		if len(vol.targets) > 0 {
			c.report(RuleOrder, "the volume is unstaged while it is published: %s", vol.use())
		}
	case NodePublish:
		c.publish(vol)
	case NodeUnpublish:
		if other := c.view.user(c.r.call.TargetPath, c.r.call.Volume); other != "" {
			c.report(RuleTarget, "the target belongs to volume %q", other)
		}
	case ControllerExpand:
		c.controllerExpand(vol)
	case NodeExpand:
		c.nodeExpand(vol)
	case NodeHealth:
		c.stagingField(vol)
	case NodeStats:
		c.stagingField(vol)
		if path := c.r.call.TargetPath; path != vol.staging && vol.targets[path] == nil {
			c.report(RuleOrder, "the volume is neither staged nor published at %q", path)
		}
	}
}

// attached checks that the caller has connected the volume with ControllerPublish.
func (c *check) attached(vol *volumeView) {
	if !attaches(c.cfg) {
		return
	}

	a := vol.attached[c.cfg.NodeID]
	if a == nil {
		a = &attachView{}
	}
	if a.is != yes {
		c.report(RuleOrder, "the volume is %s connected to node %q", a.is, c.cfg.NodeID)
	}
}

func (c *check) onePath(vol *volumeView) {
	if path := c.r.call.StagingPath; vol.staged != no && path != "" && path != vol.staging {
		c.report(RuleStagingPath, "the staging path is %q, but the volume is %s staged at %q", path, vol.staged, vol.staging)
	}
}

func (c *check) detach(vol *volumeView) {
	node := c.r.call.NodeID
	if node != "" && vol.attached[node] == nil && (len(vol.attached) > 0 || (node != c.cfg.NodeID && !c.cfg.NoNode)) {
		c.report(RuleNode, "the node id is %q; the volume is connected to %q, and the node is %q",
			node, slices.Sorted(maps.Keys(vol.attached)), c.cfg.NodeID)
	}
	if vol.staged != no || len(vol.targets) > 0 {
		c.report(RuleOrder, "the volume is disconnected while it is in use: %s", vol.use())
	}
}

func (c *check) publish(vol *volumeView) {
	call := c.r.call
	if c.cfg.Stage {
		if vol.staged != yes {
			c.report(RuleOrder, "the volume is %s staged", vol.staged)
		}

		c.onePath(vol)
		c.mountGroup(vol)
		if vol.staged == yes && call.Capability != vol.stagedAs {
			c.report(RuleCapability, "the capability is %q, but the volume is staged as %q", call.Capability, vol.stagedAs)
		}
	} else {
		c.attached(vol)
	}

	c.target(vol)
	if len(c.r.capabilities) == 0 || strings.HasPrefix(c.r.capabilities[0].GetAccessMode().GetMode().String(), "MULTI_NODE_") ||
		strings.HasPrefix(call.Capability, "SINGLE_NODE_MULTI_WRITER:") {
		return
	}

	for path := range vol.targets {
		if path != call.TargetPath {
			c.report(RuleMode, "the mode %q allows one target, but the volume is published at %q", call.Capability, path)
			return
		}
	}
}

func (c *check) target(vol *volumeView) {
	call := c.r.call
	if call.TargetPath == "" {
		return
	}
	if !c.r.seen.targetParent {
		c.report(RuleTarget, "the parent directory of target %q does not exist", call.TargetPath)
	}

	was := vol.targets[call.TargetPath]
	switch other := c.view.user(call.TargetPath, call.Volume); {
	case other != "":
		c.report(RuleTarget, "the target %q belongs to volume %q", call.TargetPath, other)
	case was == nil && c.r.seen.targetExists:
		c.report(RuleTarget, "the target %q exists already, but the plugin must create it", call.TargetPath)
	case was != nil && was.is == yes && (was.as != call.Capability || was.readOnly != call.ReadOnly):
		c.report(RuleTarget, "the target %q is published already with other options", call.TargetPath)
	}
}

// use describes where a volume is, or may be, in use.
func (vol *volumeView) use() string {
	var words []string
	for _, node := range slices.Sorted(maps.Keys(vol.attached)) {
		words = append(words, vol.attached[node].is.String()+" attached to "+node)
	}

	if vol.staged != no {
		words = append(words, vol.staged.String()+" staged at "+vol.staging)
	}

	for _, path := range slices.Sorted(maps.Keys(vol.targets)) {
		words = append(words, vol.targets[path].is.String()+" published at "+path)
	}
	return strings.Join(words, ", ")
}
