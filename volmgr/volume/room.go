package volume

import (
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
)

// namesMost is the number of volumes that a refusal names.
const namesMost = 5

// Room refuses a volume that is not on this host yet if its plugin can have no more volumes here.
// The limit is NodeGetInfo.max_volumes_per_node of CSI; 0 is no limit. The first list has all
// records, the second one those of forced deregisters. A storage volume counts once if anything of
// it may be here, also while its claims are being detached. The error is ErrRefused.
func Room(r Record, p PluginInfo, others, owed []Record) error {
	if p.MaxVolumes <= 0 || r.Held() {
		return nil
	}

	here := map[string]string{} // storage → id
	for _, o := range slices.Concat(owed, others) {
		if o.Volume.PluginID == r.Volume.PluginID && o.Held() {
			here[LeftoverKey(o.Volume.Driver, o.Volume.ExternalID)] = o.Volume.ID
		}
	}

	delete(here, LeftoverKey(r.Volume.Driver, r.Volume.ExternalID)) // a volume that was deregistered by force still has its place
	if int64(len(here)) < p.MaxVolumes {
		return nil
	}

	ids := make([]string, 0, len(here))
	for _, id := range here {
		ids = append(ids, id)
	}

	slices.Sort(ids)
	names := strings.Join(ids[:min(len(ids), namesMost)], ", ")
	if more := len(ids) - namesMost; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}

	return Errorf(ErrRefused, "plugin %q can have %d volumes on this host at once, and has %d: %s", r.Volume.PluginID, p.MaxVolumes, len(here), names).
		WithRemedy(remedy.Of(remedy.DetachUnneeded))
}
