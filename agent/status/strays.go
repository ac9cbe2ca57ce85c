package status

import (
	"fmt"

	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Strays returns the mounts below the mount root that belong to no record, and the volumes of
// plugin tests. It must be called only when no record has a mount.
func (s *Service) Strays() (all []volume.Occupant) {
	for id, left := range s.Plugins.Usage.Scratches() {
		words := "a test of plugin %q left it, and it is not undone"
		if s.Tests.Testing(id) {
			words = "a test of plugin %q has it"
		}
		all = append(all, volume.Occupant{Volume: left.Name(), Message: fmt.Sprintf(words, id), Command: remedy.Of(remedy.ShowTest, id)})
	}

	if len(all) > 0 {
		return all
	}

	entries, err := identity.MountsBelow(s.Host, config.MountRoot(s.DataDir))
	if err != nil {
		return append(all, volume.Occupant{Message: fmt.Sprintf("the mount table cannot be read: %v", err), Command: remedy.Of(remedy.ShowTable)})
	}

	for _, e := range entries {
		all = append(all, volume.Occupant{
			Message: fmt.Sprintf("%s is mounted (%s), and no record explains it", e.Path, e.Identity.FSType), Command: remedy.Of(remedy.UnmountPath, e.Path),
		})
	}

	return all
}
