package listen

import (
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLend checks that the socket from Lend accepts connections, and that the caller gets the
// kernel's error if Lend cannot open the socket.
func TestLend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	at, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	borrow := func(address string) (net.Listener, error) {
		t.Helper()
		if err := Lend(t.Context(), address, path); err != nil {
			t.Fatal(err)
		}
		conn, err := at.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return receive(conn)
	}
	l, err := borrow("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s, err := l.Accept(); err != nil {
		t.Error(err)
	} else {
		s.Close()
	}
	if _, err := borrow(l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("an address in use: %v", err)
	}
	if _, err := borrow("192.0.2.1:9"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of nobody here: %v", err)
	}
}
