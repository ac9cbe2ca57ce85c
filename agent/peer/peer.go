// Package peer identifies the process at the other end of a unix socket, as the kernel reports it.
package peer

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is the process that connected. Its PID is 0 if the agent's pid namespace does not contain
// it.
type Peer struct {
	PID int
	UID uint32
	GID uint32
	// Groups are the peer's supplementary groups.
	Groups []int
	// Known is false if the kernel gave no answer.
	Known bool
}

// String describes a peer for an error.
func (p Peer) String() string {
	if !p.Known {
		return "an unknown caller"
	}
	return fmt.Sprintf("uid %d", p.UID)
}

type key struct{}

// With stores the peer of a connection in a context. It has the type of http.Server.ConnContext.
func With(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, key{}, ask(c))
}

// Of returns the peer that With stored.
func Of(ctx context.Context) Peer {
	p, _ := ctx.Value(key{}).(Peer)
	return p
}

// ask returns the credentials of the peer at the time when it connected, as the kernel reports
// them.
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
