package csitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// IsChild reports whether this process must run as a plugin, or as a process that a plugin needs.
// Such a process must only call Main.
func IsChild() bool { return os.Getenv(envConfig) != "" || os.Getenv(envDaemon) != "" }

// Main runs a plugin process, which serves at CSI_ENDPOINT until SIGTERM or SIGINT. The plugin also
// ends when its base directory is removed, so that a killed test leaves no plugin behind. Main
// returns the exit code and writes errors to stderr.
func Main() int {
	if os.Getenv(envDaemon) != "" {
		daemon()
		return 0
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "csitest:", err)
		return 1
	}

	return 0
}

func run() error {
	var cfg Config
	if err := strictJSON([]byte(os.Getenv(envConfig)), &cfg); err != nil {
		return fmt.Errorf("cannot read %s: %w", envConfig, err)
	}

	endpoint := os.Getenv("CSI_ENDPOINT")
	if endpoint == "" {
		return errors.New("cannot start: CSI_ENDPOINT is not set")
	}
	if cfg.Fuse {
		ownFiles()
	}

	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()

	p := New(cfg)
	p.crash = killSelf
	go func() {
		defer stop()
		p.awaitBaseGone(ctx)
	}()
	return p.Serve(ctx, endpoint)
}

// ownFiles prepares a process that uses files which the process itself serves through FUSE. A
// thread that waits for such a file may occupy one of Go's processors. A garbage collection would
// then wait for this thread, and both would wait forever. Therefore ownFiles switches the garbage
// collection off. The process exists only for one test, so it does not need garbage collection.
func ownFiles() {
	runtime.GOMAXPROCS(runtime.NumCPU() + 16)
	debug.SetGCPercent(-1)
}

// awaitBaseGone waits until the directory of the volumes has been created and removed again.
func (p *Plugin) awaitBaseGone(ctx context.Context) {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			if _, err := os.Stat(p.store.dir); errors.Is(err, unix.ENOENT) {
				return
			}
		}
	}
}
