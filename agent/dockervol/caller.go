package dockervol

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Caller is the container runtime that sent a request.
type Caller struct {
	Runtime string // volume.RuntimeDocker or volume.RuntimePodman
	PID     int    // 0 if unknown
	// Process identifies the calling process. It is empty if unknown. The service needs it because
	// the docker daemon counts its Mounts only in memory.
	Process string
}

// caller determines the runtime that sent a request. It accepts only runtimes that run as root,
// because a caller of this API can mount any volume.
func caller(p peer.Peer) (Caller, error) {
	switch {
	case !p.Known:
		return Caller{}, volume.Errorf(volume.ErrRefused, "the kernel does not identify the caller")
	case p.UID != 0 && int(p.UID) != os.Geteuid():
		return Caller{}, volume.Errorf(volume.ErrRefused, "uid %d may not use volumes of volagent; only root's docker and podman may", p.UID).
			WithHint("run podman as root; rootless podman can use a directory at which a volume is mounted")
	case p.PID <= 0:
		return Caller{Runtime: plugin.RuntimeDocker}, nil
	}

	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return Caller{}, volume.Errorf(volume.ErrRefused, "the runtime that called has ended (pid %d)", p.PID)
	}
	return Caller{Runtime: runtimeOf(exe), PID: p.PID, Process: processOf(p.PID)}, nil
}

// processOf identifies a process by the boot id, the pid and the start time. It returns an empty
// text if it cannot read these values.
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

// runtimeOf determines the runtime from the path of its program. The podman command calls the agent
// itself, but for docker, its daemon does. Every other program counts as docker, because it uses
// the same API.
func runtimeOf(exe string) string {
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)") // the kernel adds this suffix after an upgrade of the program
	if strings.HasPrefix(name, "podman") {
		return plugin.RuntimePodman
	}
	return plugin.RuntimeDocker
}
