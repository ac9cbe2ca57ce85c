package dockervol

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/volagent/volagent/volmgr/volume"
)

// peer is who is at the other end of the socket, by the kernel's word.
type peer struct {
	pid   int // 0 in a pid namespace that is not ours
	uid   uint32
	known bool
}

type peerKey struct{}

// withPeer is http.Server.ConnContext.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}

func peerOf(c net.Conn) (p peer) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return p
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return p
	}
	if raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			p = peer{pid: int(cred.Pid), uid: cred.Uid, known: true}
		}
	}) != nil {
		return peer{}
	}
	return p
}

// runtime says which runtime a peer is. Only root's may ask: who may, may have anything
// mounted anywhere.
func (p peer) runtime() (string, error) {
	switch {
	case !p.known:
		return "", volume.Errorf(volume.ErrRefused, "the kernel does not say who is calling")
	case p.uid != 0 && int(p.uid) != os.Geteuid():
		return "", volume.Errorf(volume.ErrRefused, "uid %d may not use volumes of volagent; only root's docker and podman may", p.uid).
			WithHint("run podman as root; a rootless one can use a directory that a volume is mounted at")
	case p.pid <= 0:
		return volume.RuntimeDocker, nil
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
	if err != nil {
		return "", volume.Errorf(volume.ErrRefused, "the runtime that called has ended (pid %d)", p.pid)
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
