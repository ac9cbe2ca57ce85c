package backup

import (
	"fmt"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// sinceBackup stands for containers that were started after the backup was taken. They share the
// claim, but no list names them. No runtime releases this reference. It ends when the agent sees no
// user of the volume.
const sinceBackup = "since-the-backup"

// runtime restores the name under which a container runtime knows a volume. It restores the
// references of containers only for claims that were restored too.
func (re *restoring) runtime(v volume.RuntimeVolume) {
	if _, ok := re.tx.RuntimeVolume(v.Runtime, v.Name); ok {
		re.say(v.Runtime, v.Name, api.OutcomePresent)
		return
	}

	r, ok := re.tx.Volume(v.VolumeID)
	if !ok {
		re.say(v.Runtime, v.Name, api.OutcomeDropped, fmt.Sprintf("there is no volume %q here", v.VolumeID))
		return
	}

	for _, o := range re.tx.RuntimeVolumes() {
		if o.Runtime == v.Runtime && o.VolumeID == v.VolumeID {
			re.say(v.Runtime, v.Name, api.OutcomeRefused, fmt.Sprintf("%s knows volume %q as %q here", v.Runtime, v.VolumeID, o.Name))
			return
		}
	}

	v = v.Without(func(ref volume.RuntimeRef) bool { return r.Claims[ref.Alloc].Owner != v.Owner() })
	shared := v.Runtime == volume.RuntimeDocker && v.Claimed(v.Runtime) // podman uses one id for all containers
	if shared && re.from.Node.Boot == re.s.Node.Boot {
		v = v.Mounting(sinceBackup, "", re.at)
	}
	re.tx.PutRuntimeVolume(v)
	re.say(v.Runtime, v.Name, api.OutcomeRestored)
}
