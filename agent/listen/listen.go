// Package listen opens the agent's sockets. A unix socket is new or comes from systemd. A TCP
// socket comes from a helper service if the agent itself may not open one.
package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// MaxPath is the maximum length of a socket's path, in bytes. It is the size of sun_path without
// the final zero (unix(7)).
const MaxPath = 107

// admit sets the group and the mode of a socket, which decide who may connect.
func admit(path string, gid int, mode os.FileMode) error {
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode)); err != nil {
		return fmt.Errorf("cannot set the group or mode of the socket: %w", err)
	}
	return nil
}

// listen opens a socket with a mode, a group, and root as owner. It replaces a socket file that a
// crashed agent left. If a process answers on the socket, another agent is running and listen
// fails.
func listen(path string, gid int, mode os.FileMode) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the socket: %w", err)
	}

	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(volume.Errorf(volume.ErrRefused, "another agent answers on %s", path).
			WithHint("stop it, or configure another socket for this agent"), c.Close())
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		// A connection to a regular file fails in the same way. The file may belong to a user and
		// must stay.
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
			return nil, volume.Errorf(volume.ErrInvalid, "%s exists and is not a socket", path).WithHint("configure another path for the socket")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("cannot remove the socket of an earlier run: %w", err)
		}
	}

	l, err := listenHidden(path, gid, mode)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}

	return l, nil
}

// listenHidden opens a socket in a directory that only the agent can enter. It sets the owner and
// the mode there, and then moves the socket to its path. The socket is therefore never accessible
// to other users. listenHidden does not change the umask of the process, because that would affect
// files that other goroutines create.
func listenHidden(path string, gid int, mode os.FileMode) (net.Listener, error) {
	above, pattern := filepath.Dir(path), "."+filepath.Base(path)+".*"
	clearHidden(above, pattern)
	dir, err := os.MkdirTemp(above, pattern) // mode 0700
	if err != nil {
		return nil, err
	}
	defer clearHidden(above, filepath.Base(dir))

	at, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = at.Close() }() // only the name of the directory is needed

	hidden := filepath.Join(dir, "s")
	name := hidden
	if len(name) > MaxPath {
		name = fmt.Sprintf("/proc/self/fd/%d/s", at.Fd())
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}

	// The socket gets another name below, so Close of the listener must not remove it.
	l.SetUnlinkOnClose(false)
	err = admit(hidden, gid, mode)
	if err == nil {
		err = os.Rename(hidden, path)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Lstat(path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}

	return &movedListener{UnixListener: l, path: path, file: info}, nil
}

// clearHidden removes the hidden directories of this agent and those that a killed agent left.
func clearHidden(above, pattern string) {
	left, err := filepath.Glob(filepath.Join(above, pattern))
	if err != nil {
		return // Glob fails only if the pattern is invalid
	}

	for _, dir := range left {
		_ = os.Remove(filepath.Join(dir, "s"))
		_ = os.Remove(dir)
	}
}

// movedListener is a listener whose socket file was moved after the listener was opened.
type movedListener struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// Close stops listening and removes the socket file, unless another socket has replaced it.
func (l *movedListener) Close() error {
	info, err := os.Lstat(l.path)
	if err == nil && os.SameFile(info, l.file) {
		err = os.Remove(l.path)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}

	return errors.Join(err, l.UnixListener.Close())
}

// GroupID returns the number of a group. The group is given by its name or its number.
func GroupID(name string) (int, error) {
	if id, err := strconv.Atoi(name); err == nil {
		return id, nil
	}

	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, volume.Errorf(volume.ErrInvalid, "socket_group: no group %q on this host", name).WithHint("%s", suggest.Command("groupadd --system %s", name))
	}

	return strconv.Atoi(g.Gid)
}

// Allowed returns a function that reports whether a peer may change state. Root, the user who runs
// the agent, and members of the group may.
func Allowed(gid int) func(peer.Peer) bool {
	self := uint32(os.Geteuid())
	return func(p peer.Peer) bool {
		if !p.Known {
			return false
		}
		if p.UID == 0 || p.UID == self || int(p.GID) == gid {
			return true
		}

		return slices.Contains(p.Groups, gid)
	}
}
