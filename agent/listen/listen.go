// Package listen opens the agent's listening sockets. A unix socket may already have been opened by
// systemd. If the agent is not allowed to open TCP sockets, a helper service opens them.
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

// MaxPath is the maximum length of a socket's path, in bytes. The limit is the size of sun_path
// without the terminating zero (unix(7)).
const MaxPath = 107

// admit sets the group and mode of a socket file, and so determines which users can connect.
func admit(path string, gid int, mode os.FileMode) error {
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode)); err != nil {
		return fmt.Errorf("cannot set the group or mode of the socket: %w", err)
	}
	return nil
}

// listen opens a unix socket with the given mode and group, and with root as the owner. It replaces
// the socket file of a crashed agent. It fails if a process answers on the socket, because another
// agent is then running.
func listen(path string, gid int, mode os.FileMode) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the socket: %w", err)
	}

	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(volume.Errorf(volume.ErrRefused, "another agent answers on %s", path).
			WithHint("stop it, or configure another socket for this agent"), c.Close())
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		// Connecting to a regular file returns the same error. Such a file may belong to a user, so
		// the agent must not remove it.
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

// listenHidden creates a socket in a directory that only the agent can enter. It sets the owner and
// the mode, and then moves the socket to its path. No other user can connect before the mode is
// set. listenHidden does not use the umask, because a change of the umask would affect files that
// other goroutines create.
func listenHidden(path string, gid int, mode os.FileMode) (net.Listener, error) {
	above, pattern := filepath.Dir(path), "."+filepath.Base(path)+".*"
	clearHidden(above, pattern)
	dir, err := os.MkdirTemp(above, pattern) // created with mode 0700
	if err != nil {
		return nil, err
	}
	defer clearHidden(above, filepath.Base(dir))

	at, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = at.Close() }() // the directory is open only for its name

	hidden := filepath.Join(dir, "s")
	name := hidden
	if len(name) > MaxPath {
		name = fmt.Sprintf("/proc/self/fd/%d/s", at.Fd())
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}

	// Below, the socket file is moved to path, so the listener's Close must not remove it.
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

// clearHidden removes the hidden directories of this agent and of any agent that was killed.
func clearHidden(above, pattern string) {
	left, err := filepath.Glob(filepath.Join(above, pattern))
	if err != nil {
		return // the pattern is invalid
	}

	for _, dir := range left {
		_ = os.Remove(filepath.Join(dir, "s"))
		_ = os.Remove(dir)
	}
}

// movedListener is a listener whose socket file was moved after it was opened.
type movedListener struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// Close stops listening and removes the socket file, unless another socket file has replaced it.
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

// GroupID returns the number of a group, which can be given as a name or a number.
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

// Allowed returns a function that reports whether a peer may change the agent's state. Root, the
// user who runs the agent, and members of the group may change it.
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
