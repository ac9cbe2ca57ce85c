package volmgr

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
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

// made returns the recorded mount at the step's path, or nil. For a pending call, that is the mount
// that the agent undid without the plugin in this boot.
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

// busy returns the outcome of a failure with the users of a mount, and with a remedy that stops the
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
