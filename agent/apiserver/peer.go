package apiserver

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is who is at the other end of the socket, by the kernel's word.
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

type peerKey struct{}

// withPeer is http.Server.ConnContext.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peer(c))
}

func peerOf(ctx context.Context) Peer {
	p, _ := ctx.Value(peerKey{}).(Peer)
	return p
}

// peer asks the kernel for the credentials that the peer connected with.
func peer(c net.Conn) Peer {
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
		p.Groups = peerGroups(int(fd))
	}) != nil {
		return Peer{}
	}
	return p
}
