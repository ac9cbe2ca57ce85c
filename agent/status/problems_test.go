package status

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// TestUnheard checks that for each error from listening on an address, unheard names a helpful
// command.
func TestUnheard(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EADDRINUSE: "ss -ltnp sport = :9187", syscall.EADDRNOTAVAIL: "ip address", syscall.EACCES: "volagent check-config",
		syscall.EAFNOSUPPORT: "systemctl status volagent dbus", syscall.EPERM: "systemctl status volagent dbus",
	} {
		err := &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", errno)}
		if _, command := unheard(err, "[::1]:9187"); command != want {
			t.Errorf("%v: %q, want %q", errno, command, want)
		}
	}
}
