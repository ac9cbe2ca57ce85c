package dockervol

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Caller is the container runtime that sent a request, with its rights.
type Caller struct {
	service.Caller
	Runtime string // plugin.RuntimeDocker or plugin.RuntimePodman
	Shared  bool   // the runtime has called the plugin for shared volumes
	// Process identifies the calling process. It is empty if unknown. The service uses it to notice
	// a restart of the docker daemon, which counts its Mounts only in memory.
	Process string
}

// caller determines the runtime that sent a request, and its rights.
func caller(p peer.Peer) (Caller, error) {
	rights, err := service.RuntimeCaller(p)
	if err != nil || p.PID <= 0 {
		return Caller{Caller: rights, Runtime: plugin.RuntimeDocker}, err
	}

	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return Caller{}, volume.Errorf(volume.ErrRefused, "the runtime that called has ended (pid %d)", p.PID)
	}
	return Caller{Caller: rights, Runtime: runtimeOf(exe), Process: processOf(p.PID)}, nil
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

// runtimeOf determines the runtime from the path of its program. For podman, the podman command
// itself calls the agent. For docker, the docker daemon calls the agent. Every other program counts
// as docker, because it uses the same API.
func runtimeOf(exe string) string {
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)") // the kernel adds this suffix after an upgrade of the program
	if strings.HasPrefix(name, "podman") {
		return plugin.RuntimePodman
	}
	return plugin.RuntimeDocker
}
