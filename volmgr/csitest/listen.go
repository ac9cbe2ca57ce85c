package csitest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/peer"
)

// listen opens the socket of an endpoint: unix:///path, unix:/path or /path. If replace is set,
// listen replaces a socket file that no process uses any longer.
func listen(endpoint string, replace bool) (*net.UnixListener, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot listen on %q: it is not of the form unix:///path", endpoint)
	}
	if replace {
		if err := removeStale(path); err != nil {
			return nil, fmt.Errorf("cannot listen on %q: %w", endpoint, err)
		}
	}

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", endpoint, err)
	}

	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("a file that is not a socket has this path")
	}

	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		return errors.Join(errors.New("another process answers on the socket"), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}

	return os.Remove(path)
}

// credListener gives each connection a number, and determines the process that opened the
// connection.
type credListener struct {
	*net.UnixListener
	count atomic.Int64
}

func (l *credListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return credConn{UnixConn: conn, addr: callerAddr{number: l.count.Add(1), pid: peerPid(conn)}}, nil
}

// peerPid returns the pid of the caller, or 0 if the pid is unknown.
func peerPid(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}

	pid := 0
	if raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	}) != nil {
		return 0
	}
	return pid
}

type credConn struct {
	*net.UnixConn
	addr callerAddr
}

func (c credConn) RemoteAddr() net.Addr { return c.addr }

// callerAddr is the address of a caller. gRPC passes it to the handlers of calls.
type callerAddr struct {
	number int64 // number of the connection
	pid    int
}

func (callerAddr) Network() string  { return "unix" }
func (a callerAddr) String() string { return fmt.Sprintf("pid %d, connection %d", a.pid, a.number) }

func callerOf(ctx context.Context) callerAddr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return callerAddr{}
	}

	a, ok := p.Addr.(callerAddr)
	if !ok {
		return callerAddr{}
	}

	return a
}
