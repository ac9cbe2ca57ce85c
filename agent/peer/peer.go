// Package peer tells who is at the other end of a unix socket, by the kernel's word.
package peer

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is who connected. A PID of 0 is of a pid namespace that is not ours.
type Peer struct {
	PID int
	UID uint32
	GID uint32
	// Groups are the peer's supplementary groups.
	Groups []int
	// Known is false where the kernel did not tell.
	Known bool
}

// String words a peer for an error.
func (p Peer) String() string {
	if !p.Known {
		return "an unknown caller"
	}
	return fmt.Sprintf("uid %d", p.UID)
}

type key struct{}

// With keeps the peer of a connection, as http.Server.ConnContext.
func With(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, key{}, ask(c))
}

// Of is the peer that With kept.
func Of(ctx context.Context) Peer {
	p, _ := ctx.Value(key{}).(Peer)
	return p
}

// ask asks the kernel for the credentials that the peer connected with.
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
