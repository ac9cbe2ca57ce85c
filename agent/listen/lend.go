package listen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/systemd"
)

// lendWithin bounds the time to get a socket from the helper service.
const lendWithin = 10 * time.Second

// TCP opens TCP sockets. The packaged service may not open them itself (RestrictAddressFamilies=).
// In that case a second service opens the socket for it. The agent can then answer there, but
// cannot connect to other hosts.
type TCP struct {
	// Dir is a directory that only the agent can write to.
	Dir string
	// Args are the arguments with which this program calls Lend. An address and the path of a
	// socket are appended.
	Args []string
	// Outside runs a command in a service of its own.
	Outside func(context.Context, *exec.Cmd) error
}

// Open opens a listening socket at an address.
func (t TCP) Open(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if !errors.Is(err, syscall.EAFNOSUPPORT) || !systemd.InService() {
		return l, err
	}

	lent, errno := t.borrow(ctx, address)
	if errno != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp " + address, Err: errno}
	}

	return lent, nil
}

// borrow starts a service that opens the socket, and receives the socket from it.
func (t TCP) borrow(ctx context.Context, address string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, lendWithin)
	defer cancel()

	self, err := os.Executable()
	if err != nil {
		return nil, err
	}

	dir, err := os.MkdirTemp(t.Dir, "lend-") // no other user may enter it
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
	cmd := exec.CommandContext(ctx, self, append(slices.Clone(t.Args), address, path)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &words, &words, time.Second
	if err := t.Outside(ctx, cmd); err != nil {
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

// receive takes the socket that Lend sends, or the error number if Lend could not open one.
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

// Lend opens a listening socket at an address and sends it to the process that listens at path. If
// it cannot open the socket, it sends the error number.
func Lend(ctx context.Context, address, path string) error {
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
