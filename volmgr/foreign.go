package volmgr

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// foreign returns an error if the step would unmount a foreign mount on top of the volume. A plugin
// unmounts the top mount without a check of its origin. The content of a foreign mount could be
// lost.
//
// foreign compares the top mount with the recorded one. If the agent died before it could record a
// mount, the top mount counts as the plugin's.
func (s step) foreign() volume.Outcome {
	made := s.made()
	if made == nil {
		return volume.Outcome{}
	}

	// The check does not open the mount, because an open mount would be busy during the unmount.
	sight := s.m.o.Host.LookAll(s.ctx, []string{s.a.Path}, map[string]bool{s.a.Path: true})[0]
	known := sight.Identity != volume.MountIdentity{}
	if !known || made.Shows(sight.Identity) {
		return volume.Outcome{}
	}
	out := s.unverified("%s, which is not part of volume %q, is mounted over it at %s; volagent does not unmount it",
		s.describe(sight), s.r.Volume.ID, s.a.Path)
	out.Unsent = true
	return s.busy(out, s.a.Path)
}

// describe describes a mount in the words of findmnt(8).
func (s step) describe(sight volume.Sight) string {
	words := fmt.Sprintf("a mount of type %s", sight.Identity.FSType)
	entries, err := s.m.o.Host.Under(s.a.Path)
	if err != nil {
		return words
	}

	for _, e := range entries {
		if e.Path == s.a.Path && !e.Covered {
			return fmt.Sprintf("%s (source %q, mount id %d)", words, strings.ToValidUTF8(e.Source, "?"), e.ID)
		}
	}

	return words
}
