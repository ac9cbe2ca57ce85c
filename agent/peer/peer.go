// Package peer identifies the process at the other end of a unix socket. The information comes from
// the kernel, so the process cannot forge it.
package peer

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is the process that connected to the socket. PID is 0 if the process is outside the agent's
// pid namespace.
type Peer struct {
	PID int
	UID uint32
	GID uint32
	// Groups are the peer's supplementary groups.
	Groups []int
	// Known is false if the kernel did not report the peer's credentials.
	Known bool
}

// String describes the peer in error messages.
func (p Peer) String() string {
	if !p.Known {
		return "an unknown caller"
	}
	return fmt.Sprintf("uid %d", p.UID)
}

type key struct{}

// With stores the peer of a connection in a context. With has the signature of
// http.Server.ConnContext.
func With(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, key{}, ask(c))
}

// Of returns the peer that With stored in the context.
func Of(ctx context.Context) Peer {
	p, _ := ctx.Value(key{}).(Peer)
	return p
}

// ask returns the credentials that the peer had when it connected, as the kernel reports them.
func ask(c net.Conn) Peer {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}
	}

	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}
	}

	var p Peer
	if raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return
		}

		p = Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Known: true}
		p.Groups = groups(int(fd))
	}) != nil {
		return Peer{}
	}

	return p
}
