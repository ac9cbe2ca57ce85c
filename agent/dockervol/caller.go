package dockervol

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Caller is who sent a request.
type Caller struct {
	Runtime string // volume.RuntimeDocker or volume.RuntimePodman
	PID     int    // 0 if it is not known
	// Process tells the calling process from every other one; empty if it is not known.
	// Docker's daemon counts its Mounts in memory.
	Process string
}

// caller says which runtime a peer is. Only root's runtimes are served, because a caller
// can have any volume mounted.
func caller(p peer.Peer) (Caller, error) {
	switch {
	case !p.Known:
		return Caller{}, volume.Errorf(volume.ErrRefused, "the kernel does not say who is calling")
	case p.UID != 0 && int(p.UID) != os.Geteuid():
		return Caller{}, volume.Errorf(volume.ErrRefused, "uid %d may not use volumes of volagent; only root's docker and podman may", p.UID).
			WithHint("run podman as root; a rootless one can use a directory that a volume is mounted at")
	case p.PID <= 0:
		return Caller{Runtime: volume.RuntimeDocker}, nil
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return Caller{}, volume.Errorf(volume.ErrRefused, "the runtime that called has ended (pid %d)", p.PID)
	}
	return Caller{Runtime: runtimeOf(exe), PID: p.PID, Process: processOf(p.PID)}, nil
}

// processOf identifies a process by the boot, its pid, and when it started; empty if that
// cannot be read.
func processOf(pid int) string {
	boot, err := proc.BootID()
	if err != nil {
		return ""
	}
	stat, err := proc.ReadStat(pid)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d/%d", boot, pid, stat.Start)
}

// runtimeOf tells by its program which runtime one is. Podman's commands call
// themselves; for docker it is the daemon, and whoever speaks its language.
func runtimeOf(exe string) string {
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)") // as after an upgrade
	if strings.HasPrefix(name, "podman") {
		return volume.RuntimePodman
	}
	return volume.RuntimeDocker
}
