package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
)

// lendWithin bounds the time to get a socket from the helper service.
const lendWithin = 10 * time.Second

// listenTCP opens a listening socket at an address. The packaged service may not open TCP sockets
// itself (RestrictAddressFamilies=). In that case a second service opens the socket for it. The
// agent can then answer there, but cannot connect to other hosts.
func (a *agent) listenTCP(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if !errors.Is(err, syscall.EAFNOSUPPORT) || !systemd.InService() {
		return l, err
	}

	lent, errno := a.borrow(ctx, address)
	if errno != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp " + address, Err: errno}
	}

	return lent, nil
}

// borrow starts a service that opens the socket, and receives the socket from it.
func (a *agent) borrow(ctx context.Context, address string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, lendWithin)
	defer cancel()

	self, err := os.Executable()
	if err != nil {
		return nil, err
	}

	dir, err := os.MkdirTemp(a.c.RuntimeDir, "lend-") // no other user may enter it
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir) //nolint:errcheck // it is empty, and goes with the next boot

	path := filepath.Join(dir, "sock")
	at, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer at.Close() //nolint:errcheck // what it was for has come by then

	var words bytes.Buffer
	cmd := exec.CommandContext(ctx, self, lendCommand, address, path)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &words, &words, time.Second
	if err := a.plugins.Outside(ctx, cmd); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(words.Bytes()))
	}
	// The command has ended, and its message is waiting.
	if err := at.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}

	conn, err := at.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // of what was only read

	return receive(conn)
}

// receive takes the socket that lend sends, or the error number if lend could not open one.
func receive(conn *net.UnixConn) (net.Listener, error) {
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}

	code, rights := make([]byte, 16), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := conn.ReadMsgUnix(code, rights)
	if err != nil {
		return nil, err
	}

	errno, err := strconv.Atoi(string(code[:n]))
	if err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, syscall.Errno(errno)
	}

	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("no socket came"), err)
	}

	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("no socket came"), err)
	}

	f := os.NewFile(uintptr(fds[0]), "lent")
	defer f.Close() //nolint:errcheck // the listener has one of its own

	return net.FileListener(f)
}

// newLend returns the command that opens a socket for the agent. It runs in a service that systemd
// starts for this purpose.
func newLend() *cobra.Command {
	return &cobra.Command{
		Use:    lendCommand + " ADDRESS SOCKET",
		Short:  "Open a TCP socket for the agent",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE:   func(cmd *cobra.Command, args []string) error { return lend(cmd.Context(), args[0], args[1]) },
	}
}

// lend opens a listening socket at an address and sends it to the process that listens at path. If
// it cannot open the socket, it sends the error number.
func lend(ctx context.Context, address, path string) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // what is sent is sent

	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		_, err = conn.Write([]byte(strconv.Itoa(int(errno))))
		return err
	}
	if err != nil {
		return err
	}

	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}

	_, _, err = conn.WriteMsgUnix([]byte("0"), unix.UnixRights(int(f.Fd())), nil)
	return err
}
