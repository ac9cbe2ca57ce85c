package listen

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/hashicorp/go-hclog"
)

// Inherited holds the sockets that systemd opened for this process (sd_listen_fds(3)), except those
// that the agent already uses. When the agent ends, systemd keeps the sockets open, so that new
// connections wait for the next agent.
type Inherited struct{ left []*net.UnixListener }

// Inherit takes the sockets that systemd passed to this process. Processes that the agent starts do
// not inherit them. Inherit closes descriptors that are not listening unix sockets.
func Inherit(log hclog.Logger) *Inherited {
	s := &Inherited{}
	for _, f := range activation.Files(true) {
		l, err := net.FileListener(f)
		unix, ok := l.(*net.UnixListener)
		switch {
		case ok:
			s.left = append(s.left, unix)
		case err == nil:
			err = errors.Join(errors.New("it is not a unix socket"), l.Close())
		}

		if err = errors.Join(err, f.Close()); err != nil {
			log.Warn("cannot use a socket that systemd passed", "name", f.Name(), "error", err)
		}
	}

	return s
}

// take returns the socket that systemd opened at a path, if the socket file still exists. A Close
// of the listener keeps the file, and systemd keeps listening.
func (s *Inherited) take(path string) (*net.UnixListener, bool) {
	for i, l := range s.left {
		at := l.Addr().String()
		if at != filepath.Clean(path) && !sameFile(at, path) {
			continue
		}
		if info, err := os.Lstat(at); err != nil || info.Mode()&os.ModeSocket == 0 {
			return nil, false // clients cannot connect to a removed file
		}

		s.left = slices.Delete(s.left, i, i+1)
		return l, true
	}

	return nil, false
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// Open returns the socket at a path: the one that systemd opened there, or a new one. It sets the
// mode and the group, and makes root the owner.
func (s *Inherited) Open(path string, gid int, mode os.FileMode) (net.Listener, error) {
	l, ok := s.take(path)
	if !ok {
		return listen(path, gid, mode)
	}
	if err := admit(path, gid, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}

	return l, nil
}

// Close closes the sockets that the agent does not use.
func (s *Inherited) Close(log hclog.Logger) {
	for _, l := range s.left {
		log.Warn("systemd passed a socket that is not used: either no setting names it, or its file was removed. Make volagent.socket match the configuration, and run: systemctl restart volagent.socket volagent.service",
			"socket", l.Addr().String(), "error", l.Close())
	}
	s.left = nil
}
