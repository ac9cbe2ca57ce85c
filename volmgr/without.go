package volmgr

import (
	"strings"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// ways maps each way to unmount without the plugin to its name in the mount package.
var ways = map[volume.Without]mount.How{
	volume.ByUmount: mount.Plain, volume.ByForce: mount.Force, volume.ByLazy: mount.Lazy,
}

// unmountStep unmounts a path of a volume without the plugin.
type unmountStep struct{ step }

// withoutPlugin unmounts the step's path on the host without calling the plugin. It tries only the
// kinds of unmount that the step permits (plain, forced, lazy), each with a time limit.
func (s unmountStep) withoutPlugin() volume.Outcome {
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

// vanished returns an Unseen for a recorded mount that no longer exists, if the step permits a lazy
// unmount. An earlier agent may have unmounted the mount lazily and then died before it could
// record the unmount. In that case, the agent cannot know whether a process still uses the mount.
func (s unmountStep) vanished(made *volume.MountIdentity) *volume.Unseen {
	if s.a.How != volume.ByLazy || made == nil || made.Boot != s.m.o.Host.Boot() {
		return nil
	}
	return &volume.Unseen{Path: s.a.Path}
}

// climb tries the permitted kinds of unmount, from the mildest to the most forceful. It determines
// the users of the mount before a lazy unmount, because they cannot be found afterwards.
func (s unmountStep) climb(path string) (*volume.Unseen, volume.Outcome) {
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

// swept removes the empty directory or file that remains after an unmount.
func (s unmountStep) swept(out volume.Outcome) volume.Outcome {
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
