package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/volmgr/volume"
)

// listen opens the API socket with mode 0660, owned by root and the group. A
// socket that nobody answers on is left over from a crash and is replaced; one
// that answers belongs to another agent.
func listen(path string, gid int) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the socket: %w", err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(volume.Errorf(volume.ErrRefused, "another agent answers on %s", path).
			WithHint("stop it, or give this one another --socket"), c.Close())
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		// So does a file that is no socket; that is somebody's.
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
			return nil, volume.Errorf(volume.ErrInvalid, "%s is there and is no socket", path).WithHint("give another --socket")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("cannot remove the socket of an earlier run: %w", err)
		}
	}
	// Nobody may connect before owner and mode are right.
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the API socket: %w", err)
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set who may use the API socket: %w", err), l.Close())
	}
	return l, nil
}

// groupID finds a group by name or number.
func groupID(name string) (int, error) {
	if id, err := strconv.Atoi(name); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, volume.Errorf(volume.ErrInvalid, "socket_group: no group %q on this host", name).WithHint("groupadd --system %s", name)
	}
	return strconv.Atoi(g.Gid)
}

// mayWrite lets root, whoever runs the agent, and members of the group change
// state.
func mayWrite(gid int) func(apiserver.Peer) bool {
	self := uint32(os.Geteuid())
	return func(p apiserver.Peer) bool {
		if !p.Known {
			return false
		}
		if p.UID == 0 || p.UID == self || int(p.GID) == gid {
			return true
		}
		for _, g := range p.Groups {
			if g == gid {
				return true
			}
		}
		return false
	}
}
