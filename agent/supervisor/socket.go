package supervisor

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

// Pauses between two checks of a socket that no process serves.
const (
	firstLook   = 5 * time.Millisecond
	slowestLook = time.Second
)

// peer is the process that listens on a unix socket.
type peer struct {
	file  socketFile
	pid   int    // of the process that called listen; 0 if it is not in the agent's pid namespace or one below it
	start uint64 // start time of that process
}

// socketFile distinguishes socket files at the same path. The time is part of it because a file
// system may give two of them the same inode.
type socketFile struct {
	dev, ino uint64
	made     unix.Timespec // mtime: only the creation of a socket sets it
}

func statSocket(path string) (socketFile, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return socketFile{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return socketFile{dev: st.Dev, ino: st.Ino, made: st.Mtim}, nil
}

// connect checks whether a process answers on a socket, and returns that process.
func connect(ctx context.Context, path string) (peer, error) {
	file, err := statSocket(path)
	if err != nil {
		return peer{}, err
	}

	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()

	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return peer{}, err
	}
	defer conn.Close()

	p := peer{file: file}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return peer{}, err
	}

	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		return peer{}, err
	}

	p.pid = int(cred.Pid)
	if stat, err := proc.ReadStat(p.pid); err == nil {
		p.start = stat.Start
	}

	return p, nil
}

// socketRunner watches a plugin that this agent does not run.
type socketRunner struct {
	p    *plugin
	path string
}

// Owned implements runner.
func (r *socketRunner) Owned() bool { return false }

// Socket implements runner.
func (r *socketRunner) Socket() string { return r.path }

// Find implements runner. The agent stores nothing about instances that it does not run.
func (r *socketRunner) Find(context.Context) (instance, error) { return nil, nil }

// Start implements runner. It waits until a process listens.
func (r *socketRunner) Start(ctx context.Context) (instance, error) {
	for pause := firstLook; ; pause = min(2*pause, slowestLook) {
		who, err := connect(ctx, r.path)
		if err == nil {
			return &connection{runner: r, who: who}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}

		r.p.must(r.p.m.unhealthy(r.why(err)))
		if err := r.p.sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// why describes the failure to connect.
func (r *socketRunner) why(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("socket %s does not exist", r.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("nobody listens on socket %s", r.path)
	default:
		return fmt.Sprintf("cannot connect to socket %s: %s", r.path, err)
	}
}

// connection is the instance behind a socket.
type connection struct {
	runner *socketRunner
	who    peer
}

// PID implements instance.
func (c *connection) PID() int { return c.who.pid }

// Key implements instance. A server that opens its socket anew in the same process counts as
// another instance, because it may have lost its state.
func (c *connection) Key() string { return fmt.Sprint(c.who) }

// Done implements instance. Only the connection shows the end.
func (c *connection) Done() <-chan struct{} { return nil }

// Exit implements instance.
func (c *connection) Exit() string { return "lost the connection to socket " + c.runner.path }

// Stale implements instance.
func (c *connection) Stale() bool {
	file, err := statSocket(c.runner.path)
	return err != nil || file != c.who.file
}

// Stop implements instance. The agent does not stop instances that it does not run.
func (c *connection) Stop(context.Context, time.Duration) error { return nil }

// Release implements instance.
func (c *connection) Release() error { return nil }
