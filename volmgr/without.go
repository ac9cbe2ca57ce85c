package volmgr

import (
	"strings"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// ways are the mount calls of a release without the plugin.
var ways = map[volume.Without]mount.How{
	volume.ByUmount: mount.Plain, volume.ByForce: mount.Force, volume.ByLazy: mount.Lazy,
}

// withoutPlugin takes away what is mounted at the step's path, going no further
// than the step allows. It calls nobody, and each try is bounded.
func (s step) withoutPlugin() volume.Outcome {
	sight := s.m.o.Host.Look(s.ctx, s.a.Path)
	if sight.Seen == volume.SeenNothing {
		return s.swept(volume.Outcome{Unseen: s.vanished(s.made())})
	}
	if refused := s.foreign(); refused.Err != nil {
		return refused
	}
	unseen, failed := s.climb(s.a.Path)
	if failed.Err != nil {
		return failed
	}
	if held := s.stillMounted(); held.Err != nil {
		return held
	}
	return s.swept(volume.Outcome{Unseen: unseen})
}

// made returns the recorded mount at the step's path, or nil. For a pending call it is the mount
// that was undone without the plugin, in this boot.
func (s step) made() *volume.MountIdentity {
	if s.a.Owed {
		for _, d := range s.r.Node.Owed {
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

// vanished is a mount that is on record and not there any more, where the step may
// go as far as a lazy unmount: an agent may have died after that, before it was on
// record. Whether anybody uses it still nobody can tell.
func (s step) vanished(made *volume.MountIdentity) *volume.Unseen {
	if s.a.How != volume.ByLazy || made == nil || made.Boot != s.m.o.Host.Boot() {
		return nil
	}
	return &volume.Unseen{Path: s.a.Path}
}

// climb tries one way to unmount after the other. Who holds a mount that only a
// lazy unmount takes away is asked before it is out of sight.
func (s step) climb(path string) (*volume.Unseen, volume.Outcome) {
	var err error
	for _, way := range s.a.How.Steps() {
		var users []string
		if way == volume.ByLazy {
			for _, h := range s.m.o.Host.Holders(path) {
				users = append(users, h.String())
			}
		}
		if err = s.m.o.Host.Unmount(s.ctx, path, ways[way]); err != nil {
			continue
		}
		if way == volume.ByLazy {
			return &volume.Unseen{Path: path, Users: users}, volume.Outcome{}
		}
		return nil, volume.Outcome{}
	}
	return nil, s.busy(s.outcome(err), path)
}

// swept removes the empty names that the mount leaves.
func (s step) swept(out volume.Outcome) volume.Outcome {
	out = s.cleaned(out, s.a.Path)
	if s.a.Alloc != "" {
		out = s.dropParent(out)
	}
	if out.Unseen != nil {
		words := s.a.Path + " was unmounted lazily"
		if len(out.Unseen.Users) > 0 {
			words += "; still used by " + strings.Join(out.Unseen.Users, ", ")
		}
		out.Warning = strings.TrimPrefix(out.Warning+"; "+words, "; ")
	}
	return out
}
