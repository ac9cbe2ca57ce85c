package agent

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// inspectedRuntime is a volume as a container runtime knows it.
type inspectedRuntime struct {
	volume.RuntimeVolume
	// Deregistered means that the volume of this name is gone, which is not a finding.
	Deregistered bool `json:"deregistered,omitempty"`
}

// runtimes lists the volumes that container runtimes know.
func (in *inspection) runtimes(snap statedb.View) {
	for _, v := range statedb.RuntimeVolumes.All(snap) {
		_, known := snap.Volume(v.VolumeID)
		in.Runtimes = append(in.Runtimes, inspectedRuntime{v, !known})
	}
}

// text describes the volume in one line.
func (v inspectedRuntime) text() string {
	refs := make([]string, 0, len(v.Refs))
	for _, r := range v.Refs {
		refs = append(refs, fmt.Sprintf("%s (claim of %q)", r.ID, r.Alloc))
	}
	words := "nobody refers to it"
	if len(refs) > 0 {
		words = "referred to by " + strings.Join(refs, ", ")
	}
	if v.Deregistered {
		words += "; the volume was deregistered"
	}

	return fmt.Sprintf("name %q of %s  volume %q  %s", v.Name, v.Runtime, v.VolumeID, words)
}
