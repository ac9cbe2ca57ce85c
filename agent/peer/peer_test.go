package peer_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/peer"
)

// TestOf checks that Of returns the process that connected.
func TestOf(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	p := peer.Of(peer.With(t.Context(), c))
	if !p.Known || p.PID != os.Getpid() || int(p.UID) != os.Geteuid() || int(p.GID) != os.Getegid() || !slices.Equal(p.Groups, groups) {
		t.Errorf("it is %+v, with the groups %v", p, groups)
	}
	a, b := net.Pipe()
	defer b.Close()
	for _, nobody := range []peer.Peer{peer.Of(t.Context()), peer.Of(peer.With(t.Context(), a))} {
		if nobody.Known || nobody.String() != "an unknown caller" {
			t.Errorf("it is %+v, %s", nobody, nobody)
		}
	}
}
