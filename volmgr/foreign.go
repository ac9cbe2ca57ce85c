package volmgr

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// foreign refuses a step that would unmount what somebody else mounted over the volume. A plugin
// unmounts whatever is on top, and the content of such a mount may be lost with it.
//
// It compares the top mount with the recorded one. Without a record (the agent died before the
// call was answered) there is nothing to compare, and the mount counts as the plugin's.
func (s step) foreign() volume.Outcome {
	made := s.made()
	if made == nil {
		return volume.Outcome{}
	}
	// The mount is not opened: that would keep it busy while it is unmounted.
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

// describe words a mount with what findmnt(8) shows of it.
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
