package volmgr

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// foreign returns an error if the step would unmount a foreign mount that covers the volume. A
// plugin unmounts the top mount without checking who made it. The data in a foreign mount could
// then be lost.
//
// foreign compares the top mount with the recorded mount. If no mount is recorded, because the
// agent died too early, foreign assumes that the plugin made the top mount.
func (s step) foreign() volume.Outcome {
	made := s.made()
	if made == nil {
		return volume.Outcome{}
	}

	// The check does not open the mount, because an open file would keep the mount busy during the
	// unmount.
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

// describe describes a mount with the terms of findmnt(8).
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

// made returns the recorded mount at the step's path, or nil. For a pending call, made returns the
// mount that the agent unmounted earlier in this boot without calling the plugin.
func (s step) made() *volume.MountIdentity {
	if s.a.Pending {
		for _, d := range s.r.Node.PendingCalls {
			if d.Kind == s.a.Kind && d.Path == s.a.Path && d.Mount.Boot == s.m.o.Host.Boot() {
				return &d.Mount
			}
		}

		return nil
	}

	switch c := s.claim(); s.a.Path {
	case s.r.Node.StagingPath:
		return s.r.Node.Mount
	case c.Target:
		return c.Mount
	default:
		return nil
	}
}

// busy adds the users of a mount to the outcome of a failed step, with a remedy that stops the
// first user.
func (s step) busy(out volume.Outcome, path string) volume.Outcome {
	for _, h := range s.m.o.Host.Holders(path) {
		out.Err.HeldBy = append(out.Err.HeldBy, h.String())
		if out.Err.Remedy.Empty() && h.PID != 0 {
			out.Err.Remedy = remedy.Of(remedy.StopUser, h.Unit, strconv.Itoa(h.PID))
		}
	}

	return out
}
