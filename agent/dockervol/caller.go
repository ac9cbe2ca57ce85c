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

// Caller is the runtime that sent a request.
type Caller struct {
	Runtime string // volume.RuntimeDocker or volume.RuntimePodman
	PID     int    // 0 if it is unknown
	// Process identifies the calling process; empty if it is unknown. It matters because docker's
	// daemon counts its Mounts in memory.
	Process string
}

// caller finds the runtime of a peer. It accepts only the runtimes of root, because a caller can
// mount any volume.
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

// processOf identifies a process by the boot id, its pid and its start time. The result is empty if
// they cannot be read.
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

// runtimeOf finds the runtime by its program. Podman's commands call the agent themselves. For
// docker, its daemon calls. Every other program counts as docker, because it uses the same API.
func runtimeOf(exe string) string {
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)") // the suffix appears after an upgrade
	if strings.HasPrefix(name, "podman") {
		return volume.RuntimePodman
	}
	return volume.RuntimeDocker
}
