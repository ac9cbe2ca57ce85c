package inspect

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// ErrInUse is the result of `volagent inspect --in-use` if anything is in use.
var ErrInUse = errors.New("something is in use")

// InUse prints the claims, mounts and leftovers that would remain on this host after the removal of
// the agent, each with the command that ends it. If InUse prints anything, the package scripts
// refuse to remove the package.
func (in *Report) InUse(w io.Writer) error {
	var lines []string
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, v := range in.Volumes {
		for _, c := range v.Claims {
			owner := ""
			if c.Owner != "" {
				owner = ", owner " + c.Owner
			}
			line("volume %q is claimed by %q (%s%s): %s", v.ID, c.Alloc, c.State, owner, suggest.Command("volctl volume detach %s %s", v.ID, c.Alloc))
		}

		if len(v.Claims) > 0 {
			continue // the mounts end together with the last claim
		}

		for _, m := range v.Mounts {
			line("volume %q: %s is mounted: %s", v.ID, m.Path, suggest.Command("volctl volume status %s", v.ID))
		}
		switch {
		case v.Attached != volume.Absent.String():
			line("volume %q is attached to this host: %s", v.ID, suggest.Command("volctl volume status %s", v.ID))
		case v.Hold != "":
			line("volume %q is held by this host in its cluster: %s", v.ID, suggest.Command("volctl volume status %s", v.ID))
		case len(v.PendingCalls) > 0:
			line("volume %q: its plugin was not told yet that it is unmounted: %s", v.ID, suggest.Command("volctl wait --plugin %s", v.PluginID))
		}
	}

	for _, d := range in.Leftovers {
		line("volume %q was deregistered by force, and is not undone yet: %s, or %s", d.ID,
			suggest.Command("volctl wait --plugin %s", d.PluginID), suggest.Command("volctl volume deregister %s --force --forget", d.ID))
	}

	for _, t := range in.Tests {
		line("a test of plugin %q has, or left, volume %q: %s", t.Plugin, t.Volume, suggest.Command("volctl plugin test %s", t.Plugin))
	}
	for _, m := range in.Unexplained {
		line("%s is mounted, and no record explains it: %s", m.Path, suggest.Command("umount %s", m.Path))
	}
	for _, m := range in.Elsewhere {
		line("%s is mounted by an agent with the data dir %s: %s", m.Path, in.OtherDataDir, suggest.Command("volagent inspect --data-dir %s", in.OtherDataDir))
	}
	if len(lines) == 0 {
		return nil
	}
	if _, err := io.WriteString(w, api.Printable(strings.Join(lines, "\n")+"\n")); err != nil {
		return err
	}

	return ErrInUse
}
