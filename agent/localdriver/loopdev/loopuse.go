package loopdev

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/volmgr/proc"
)

func (l LoopDevice) Devno() string {
	return fmt.Sprintf("%d:%d", unix.Major(l.Rdev), unix.Minor(l.Rdev))
}

// Holds reports whether a mount shows the filesystem on the device. btrfs uses its own device
// numbers, so for btrfs the source decides.
func (l LoopDevice) Holds(e mounts.MountEntry) bool {
	return e.Devno == l.Devno() || e.FsType == "btrfs" && e.Source == l.Path()
}

// IsNodeOf reports whether a mount is a bind of the device's node.
func (l LoopDevice) IsNodeOf(e mounts.MountEntry) bool {
	if path.Base(e.Root) != l.Name || e.Point == l.Path() {
		return false
	}
	st, err := mounts.StatPath(e.Point)
	return err == nil && st.IsBlock() && st.Rdev == l.Rdev
}

// WhoMounts lists the mounts of the filesystem on a device, for an error message.
func WhoMounts(l LoopDevice) string {
	var who []string
	want := []string{"/" + l.Name, " " + l.Devno() + " "}
	if own, err := mounts.ReadMounts(proc.OwnMounts, want...); err == nil {
		for _, e := range own {
			if l.Holds(e) || l.IsNodeOf(e) {
				who = append(who, fmt.Sprintf("mounted at %q", e.Point))
			}
		}
	}

	err := mounts.OtherNamespaces(want, func(pid int, e mounts.MountEntry) {
		if l.Holds(e) {
			who = append(who, fmt.Sprintf("mounted at %q in the mount namespace of process %d", e.Point, pid))
		}
	})
	if err != nil || len(who) == 0 {
		return ""
	}

	return " (" + strings.Join(who, ", ") + ")"
}
