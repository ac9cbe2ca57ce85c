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

// Inherited holds the sockets that systemd opened for this process (sd_listen_fds(3)) and that the
// agent has not taken yet. When the agent ends, systemd keeps the sockets open. New connections
// then wait until an agent runs again.
type Inherited struct{ left []*net.UnixListener }

// Inherit takes over the sockets that systemd passed to this process. Child processes of the agent
// do not inherit these sockets. Inherit closes descriptors that are not listening unix sockets.
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

// take returns the socket that systemd opened at a path, unless the socket file has been removed.
// The file remains when the agent closes the listener, because systemd still listens on the socket.
func (s *Inherited) take(path string) (*net.UnixListener, bool) {
	for i, l := range s.left {
		at := l.Addr().String()
		if at != filepath.Clean(path) && !sameFile(at, path) {
			continue
		}
		if info, err := os.Lstat(at); err != nil || info.Mode()&os.ModeSocket == 0 {
			return nil, false // clients cannot connect, because the socket file was removed
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

// Open returns a listening socket at a path. It uses the socket that systemd opened there, or opens
// a new one. It sets the socket's mode and group, and makes root the owner.
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

// Close closes the sockets that the agent has not taken.
func (s *Inherited) Close(log hclog.Logger) {
	for _, l := range s.left {
		log.Warn("systemd passed a socket that is not used: either no setting names it, or its file was removed. Make volagent.socket match the configuration, and run: systemctl restart volagent.socket volagent.service",
			"socket", l.Addr().String(), "error", l.Close())
	}
	s.left = nil
}
