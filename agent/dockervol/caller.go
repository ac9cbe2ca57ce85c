package dockervol

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/volume"
)

// caller says which runtime a peer is. Only root's may ask: who may, may have anything
// mounted anywhere.
func caller(p peer.Peer) (string, error) {
	switch {
	case !p.Known:
		return "", volume.Errorf(volume.ErrRefused, "the kernel does not say who is calling")
	case p.UID != 0 && int(p.UID) != os.Geteuid():
		return "", volume.Errorf(volume.ErrRefused, "uid %d may not use volumes of volagent; only root's docker and podman may", p.UID).
			WithHint("run podman as root; a rootless one can use a directory that a volume is mounted at")
	case p.PID <= 0:
		return volume.RuntimeDocker, nil
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		return "", volume.Errorf(volume.ErrRefused, "the runtime that called has ended (pid %d)", p.PID)
	}
	return runtimeOf(exe), nil
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
