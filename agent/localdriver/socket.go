package localdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the length of sun_path without its final NUL (unix(7)).
const maxSocketPath = 107

// socketPath extracts the path from "unix:///path", "unix:/path" or "/path".
func socketPath(endpoint string) (string, error) {
	path := endpoint
	if rest, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		path = rest
		if p, ok := strings.CutPrefix(rest, "//"); ok {
			path = p
		}
	}

	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("the endpoint %q is not of the form unix:///path", endpoint)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("the socket path %q has %d bytes, and a unix socket allows %d",
			path, len(path), maxSocketPath)
	}

	return path, nil
}

// listen opens the socket. Only the user who runs the driver can connect to it. The listener
// removes the socket when it is closed.
func listen(endpoint string) (net.Listener, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	if err := removeStaleSocket(path); err != nil {
		return nil, err
	}

	lis, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot restrict the socket: %w", err), lis.Close())
	}

	return lis, nil
}

// removeStaleSocket removes the file at path if it is a socket that refuses connections.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot look at the socket path: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("cannot listen on %q: a file that is no socket is there", path)
	}

	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("cannot listen on %q: another process answers there", path), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether the socket %q is in use: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the stale socket: %w", err)
	}

	return nil
}
