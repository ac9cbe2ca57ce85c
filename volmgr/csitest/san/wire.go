package san

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// SocketPath returns the path of the socket of a SAN in a directory.
func SocketPath(dir string) string { return filepath.Join(dir, "san.sock") }

// These constants are the operations that a driver requests.
const (
	opHello   = "hello"   // describes the driver's node
	opCall    = "call"    // passes on a call to the controller
	opEnter   = "enter"   // announces a call to the node, and waits for the faults
	opServe   = "serve"   // passes a FUSE device
	opRelease = "release" // says that the driver has unmounted a path
	opWriter  = "writer"  // says that a volume was published for writing
	opResize  = "resize"  // says that the node has grown the file system
)

// request is a message from a driver. Each request has a connection of its own. A driver that stops
// waiting closes the connection.
type request struct {
	Op   string
	Node string
	Info node `json:",omitzero"`

	Method  string        `json:",omitempty"`
	Body    []byte        `json:",omitempty"` // request of CSI in the format of protobuf
	Timeout time.Duration `json:",omitempty"` // time after which the driver stops waiting

	Volume     string `json:",omitempty"`
	Attachment string `json:",omitempty"` // empty if the driver has no ControllerPublish
	Mode       Mode   `json:",omitempty"`
	ReadOnly   bool   `json:",omitempty"`
	Block      bool   `json:",omitempty"`
	Path       string `json:",omitempty"` // path of the mount on the host
}

// answer is the answer of the SAN to a request.
type answer struct {
	Code    codes.Code `json:",omitempty"`
	Message string     `json:",omitempty"`
	Body    []byte     `json:",omitempty"`
	Size    int64      `json:",omitempty"`

	// Lose tells the driver to discard the answer to the call after its effect.
	Lose bool `json:",omitempty"`
}

// failed returns the answer for an error.
func failed(err error) answer {
	return answer{Code: status.Code(err), Message: status.Convert(err).Message()}
}

func (a answer) err() error {
	if a.Code == codes.OK {
		return nil
	}
	return status.Error(a.Code, a.Message)
}

// ask sends a request with an optional file, and returns the answer. An error of the SAN has the
// gRPC code that the caller of the driver must see.
func ask(ctx context.Context, socket string, r request, file *os.File) (answer, error) {
	if deadline, ok := ctx.Deadline(); ok {
		r.Timeout = max(time.Until(deadline), time.Millisecond)
	}

	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return answer{}, status.Errorf(codes.Unavailable, "cannot reach the SAN: %v", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // the closed connection ends the wait below

	a, err := exchange(conn.(*net.UnixConn), r, file)
	switch {
	case ctx.Err() != nil:
		return answer{}, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return answer{}, status.Errorf(codes.Unavailable, "cannot talk to the SAN: %v", err)
	}

	return a, a.err()
}

func exchange(conn *net.UnixConn, r request, file *os.File) (answer, error) {
	var (
		a      answer
		rights []byte
	)
	raw, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}

	raw = append(raw, '\n')
	n, _, err := conn.WriteMsgUnix(raw, rights, nil)
	if err == nil && n < len(raw) {
		_, err = conn.Write(raw[n:])
	}
	if err != nil {
		return a, err
	}

	return a, json.NewDecoder(conn).Decode(&a)
}

// receive reads a request and its file, which is nil if the request has none.
func receive(conn *net.UnixConn) (request, *os.File, error) {
	var r request
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return r, nil, err
	}

	file, err := fileOf(oob[:oobn])
	if err != nil {
		return r, nil, err
	}
	if err := json.NewDecoder(io.MultiReader(bytes.NewReader(buf[:n]), conn)).Decode(&r); err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return r, nil, err
	}

	return r, file, nil
}

func fileOf(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}

	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}

	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		return nil, fmt.Errorf("got %d descriptors instead of one", len(fds))
	}

	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
}
