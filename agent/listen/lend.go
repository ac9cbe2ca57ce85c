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

// lendWithin is the time limit for receiving a socket from the helper service.
const lendWithin = 10 * time.Second

// TCP opens listening TCP sockets. The agent's packaged service is not allowed to open TCP sockets
// (RestrictAddressFamilies=). In this case, a helper service opens the socket and passes it to the
// agent. The agent can accept connections on this socket, but cannot connect to other hosts.
type TCP struct {
	// Dir is a directory to which only the agent can write.
	Dir string
	// Args are the arguments with which this program calls Lend. TCP appends the address and the
	// path of a unix socket.
	Args []string
	// Outside runs a command in another service, without the restrictions of the agent's service.
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

// borrow starts a helper service that opens a socket, and receives the socket from this service.
func (t TCP) borrow(ctx context.Context, address string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, lendWithin)
	defer cancel()

	self, err := os.Executable()
	if err != nil {
		return nil, err
	}

	dir, err := os.MkdirTemp(t.Dir, "lend-") // created with mode 0700, so other users cannot enter
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir) //nolint:errcheck // an empty directory that remains does no harm until the next boot

	path := filepath.Join(dir, "sock")
	at, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer at.Close() //nolint:errcheck // the socket has served its purpose

	var words bytes.Buffer
	cmd := exec.CommandContext(ctx, self, append(slices.Clone(t.Args), address, path)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &words, &words, time.Second
	if err := t.Outside(ctx, cmd); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(words.Bytes()))
	}
	// The helper process has ended, so it has already sent the socket, or will never send it.
	if err := at.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}

	conn, err := at.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the connection was only read

	return receive(conn)
}

// receive returns the socket that Lend sends. If Lend could not open a socket, receive returns the
// error number that Lend sends instead.
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
		return nil, errors.Join(errors.New("the helper service sent no socket"), err)
	}

	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("the helper service sent no socket"), err)
	}

	f := os.NewFile(uintptr(fds[0]), "lent")
	defer f.Close() //nolint:errcheck // the listener has its own descriptor

	return net.FileListener(f)
}

// Lend opens a listening socket at an address and sends it to the process that listens at path. If
// Lend cannot open the socket, it sends the error number instead.
func Lend(ctx context.Context, address, path string) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the data was sent already

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
