package san

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// IsChild reports whether this process must run as a driver or as a SAN. Such a process must only
// call Main.
func IsChild() bool { return os.Getenv(envDriver) != "" || os.Getenv(envServer) != "" }

// Main runs a driver, which serves at CSI_ENDPOINT, or a SAN in the directory that the environment
// variable SAN_SERVER names. The process ends on SIGTERM or SIGINT. It also ends when the directory
// of the SAN is removed, so that a killed test leaves no process behind. Main returns the exit code
// and writes errors to stderr.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()

	run := runDriver
	if os.Getenv(envServer) != "" {
		run = runServer
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "san:", err)
		return 1
	}

	return 0
}

// ServerEnvironment returns the environment variables that make a child process run a SAN in dir.
func ServerEnvironment(dir string) []string { return []string{envServer + "=" + dir} }

func runServer(ctx context.Context) error {
	unix.Umask(0) // the kernel of each host has already applied the umask of the writer
	dir := os.Getenv(envServer)
	s, err := Start(dir)
	if err != nil {
		return err
	}

	awaitGone(ctx, dir)
	return s.Close()
}

func runDriver(ctx context.Context) error {
	cfg, err := decodeConfig(os.Getenv(envDriver))
	if err != nil {
		return err
	}

	if cfg.Node == "" {
		if cfg.Node, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot read the host name: %w", err)
		}
	}

	socket, err := listen(os.Getenv("CSI_ENDPOINT"))
	if err != nil {
		return err
	}

	d := &driver{cfg: cfg}
	if err := d.hello(ctx); err != nil {
		return errors.Join(err, socket.Close())
	}

	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(server, d)
	if !cfg.NodeOnly {
		csi.RegisterControllerServer(server, &proxy{driver: d})
	}
	if !cfg.ControllerOnly {
		csi.RegisterNodeServer(server, &nodeServer{driver: d})
	}

	serving := make(chan error, 1)
	go func() { serving <- server.Serve(socket) }()
	awaitGone(ctx, filepath.Dir(cfg.Socket))
	server.Stop()

	return <-serving
}

// listen listens on a CSI endpoint. It replaces the socket of a killed driver.
func listen(endpoint string) (net.Listener, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("cannot listen on CSI_ENDPOINT %q: it is not of the form unix:///path", endpoint)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// awaitGone waits until ctx ends or a directory is removed.
func awaitGone(ctx context.Context, dir string) {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			if _, err := os.Stat(dir); errors.Is(err, unix.ENOENT) {
				return
			}
		}
	}
}
