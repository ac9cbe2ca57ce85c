package volume

import (
	"maps"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// createAgain returns the remedy that continues the create of a volume. If the volume has settings
// without a flag, they came from a file, and the repetition needs that file.
func (v Volume) createAgain() remedy.Remedy {
	if len(v.Capabilities) != 1 || len(v.Secrets) > 0 || v.Topology.Given() || v.CapacityMax > 0 || v.Reclaim == "delete" {
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
