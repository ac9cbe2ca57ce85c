package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// Peer is the process that listens on a unix socket.
type Peer struct {
	File SocketFile
	// PID is the pid of the process that called listen; 0 if the agent's pid namespace does not
	// contain the process.
	PID   int
	Start uint64 // the start time of the process
}

// SocketFile identifies the socket file at a path. It contains a time, because a file system may
// reuse the inode number of a removed file.
type SocketFile struct {
	dev, ino uint64
	made     unix.Timespec // the mtime; nothing changes it after the socket was created
}

// StatSocket returns the identity of the socket file at a path.
func StatSocket(path string) (SocketFile, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return SocketFile{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return SocketFile{dev: st.Dev, ino: st.Ino, made: st.Mtim}, nil
}

// Connect connects to a socket and returns the process that listens on the socket.
func Connect(ctx context.Context, path string) (Peer, error) {
	file, err := StatSocket(path)
	if err != nil {
		return Peer{}, err
	}

	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()

	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return Peer{}, err
	}
	defer conn.Close()

	p := Peer{File: file}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return Peer{}, err
	}

	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		return Peer{}, err
	}

	p.PID = int(cred.Pid)
	if stat, err := proc.ReadStat(p.PID); err == nil {
		p.Start = stat.Start
	}

	return p, nil
}

// FreeSocket makes the path free for a new socket. It removes a socket on which no process answers.
// If a process answers, FreeSocket returns this process and taken is true.
func FreeSocket(ctx context.Context, path string) (who Peer, taken bool, err error) {
	switch who, err = Connect(ctx, path); {
	case err == nil:
		return who, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return Peer{}, false, nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return Peer{}, false, UnlinkSocket(path)
	default:
		return Peer{}, false, fmt.Errorf("cannot use socket %s: %w", path, err)
	}
}

// TakenError returns the error for a socket that another process serves.
func TakenError(who Peer, path string) error {
	return fmt.Errorf("cannot start it: another process (pid %d) answers on its socket %s", who.PID, path)
}

// UnlinkSocket removes a socket that no process serves. It does not remove other kinds of files.
func UnlinkSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("cannot use socket %s: the file at that path is not a socket", path)
	}
	if err == nil {
		err = os.Remove(path)
	}

	if err != nil {
		return fmt.Errorf("cannot remove the dead socket: %w", err)
	}

	return nil
}
