package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// errInUse is the end of `volagent inspect --in-use` where there is anything.
var errInUse = errors.New("something is in use")

// elsewhere lists what an agent with another data dir left on this host.
func (in *inspection) elsewhere(ctx context.Context, c Config, movedFrom string, host *mount.Host) error {
	e, err := lookElsewhere(ctx, c, movedFrom, host)
	if err != nil || e.empty() {
		return err
	}
	in.OtherDataDir = e.dataDir
	for _, m := range e.mounts {
		in.Elsewhere = append(in.Elsewhere, inspectedMount{Path: m.Path, Is: "not recorded", Source: m.Source, FSType: m.Identity.FSType})
	}
	in.find("%s", e.said(c))
	return nil
}

// inUse prints what would be left behind on this host without an agent, each
// thing with what ends it. A package is not removed while there is any.
func (in *inspection) inUse(w io.Writer) error {
	var lines []string
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, v := range in.Volumes {
		for _, c := range v.Claims {
			owner := ""
			if c.Owner != "" {
				owner = ", owner " + c.Owner
			}
			line("volume %q is claimed by %q (%s%s): %s", v.ID, c.Alloc, c.State, owner, volume.Command("volctl volume detach %s %s", v.ID, c.Alloc))
		}
		if len(v.Claims) > 0 {
			continue // the rest goes with the last of them
		}
		for _, m := range v.Mounts {
			line("volume %q: %s is mounted: %s", v.ID, m.Path, volume.Command("volctl volume status %s", v.ID))
		}
		switch {
		case v.Attached != volume.Absent.String():
			line("volume %q is attached to this host: %s", v.ID, volume.Command("volctl volume status %s", v.ID))
		case len(v.Owed) > 0:
			line("volume %q: its plugin was not told yet that it is unmounted: %s", v.ID, volume.Command("volctl wait --plugin %s", v.PluginID))
		}
	}
	for _, d := range in.Debts {
		line("volume %q was deregistered by force, and is not undone yet: %s, or %s", d.ID,
			volume.Command("volctl wait --plugin %s", d.PluginID), volume.Command("volctl volume deregister %s -force --forget", d.ID))
	}
	for _, m := range in.Unexplained {
		line("%s is mounted, and no record explains it: %s", m.Path, volume.Command("umount %s", m.Path))
	}
	for _, m := range in.Elsewhere {
		line("%s is mounted by an agent with the data dir %s: %s", m.Path, in.OtherDataDir, volume.Command("volagent inspect --data-dir %s", in.OtherDataDir))
	}
	if len(lines) == 0 {
		return nil
	}
	if _, err := io.WriteString(w, api.Printable(strings.Join(lines, "\n")+"\n")); err != nil {
		return err
	}
	return errInUse
}
