package localdriver

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/volmgr/proc"
)

func (l loopDevice) devno() string {
	return fmt.Sprintf("%d:%d", unix.Major(l.rdev), unix.Minor(l.rdev))
}

// holds reports whether a mount shows the filesystem on the device. btrfs uses its own device
// numbers, so for btrfs the source decides.
func (l loopDevice) holds(e mounts.MountEntry) bool {
	return e.Devno == l.devno() || e.FsType == "btrfs" && e.Source == l.path()
}

// isNodeOf reports whether a mount is a bind of the device's node.
func (l loopDevice) isNodeOf(e mounts.MountEntry) bool {
	if path.Base(e.Root) != l.name || e.Point == l.path() {
		return false
	}
	st, err := mounts.StatPath(e.Point)
	return err == nil && st.IsBlock() && st.Rdev == l.rdev
}

// whoMounts lists the mounts of the filesystem on a device, for an error message.
func whoMounts(l loopDevice) string {
	var who []string
	want := []string{"/" + l.name, " " + l.devno() + " "}
	if own, err := mounts.ReadMounts(proc.OwnMounts, want...); err == nil {
		for _, e := range own {
			if l.holds(e) || l.isNodeOf(e) {
				who = append(who, fmt.Sprintf("mounted at %q", e.Point))
			}
		}
	}

	err := mounts.OtherNamespaces(want, func(pid int, e mounts.MountEntry) {
		if l.holds(e) {
			who = append(who, fmt.Sprintf("mounted at %q in the mount namespace of process %d", e.Point, pid))
		}
	})
	if err != nil || len(who) == 0 {
		return ""
	}

	return " (" + strings.Join(who, ", ") + ")"
}
