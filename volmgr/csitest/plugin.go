package csitest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Plugin is one instance of a plugin. It is safe for concurrent use. To restart a plugin in its own
// process, a test makes another Plugin with the same Config.
type Plugin struct {
	cfg     Config
	store   store
	rec     recorder
	server  *grpc.Server
	socket  *net.UnixListener
	serving chan error

	// running ends when the plugin is closed or crashes. Delays and hangs then end, too.
	running context.Context
	stop    context.CancelCauseFunc
	crashed chan struct{}
	crash   func() // performs the crash that a Fault requires
	once    sync.Once
	turns   sync.Map       // maps a volume id to a *sync.Mutex; see Config.Serial
	work    sync.WaitGroup // counts the running calls and late effects
	gate    sync.Mutex     // held to add new work to work, and to stop the plugin
}

// These errors are the causes with which the context running ends.
var (
	errClosed  = errors.New("the plugin was closed")
	errCrashed = errors.New("the plugin crashed")
)

// New returns a plugin that is not running yet. It has no side effects.
func New(cfg Config) *Plugin {
	p := &Plugin{cfg: cfg.withDefaults(), serving: make(chan error, 1), crashed: make(chan struct{})}
	p.store = store{dir: filepath.Join(p.cfg.Base, "volumes"), base: p.cfg.Base, any: p.cfg.AnyVolume}
	p.running, p.stop = context.WithCancelCause(context.Background())
	p.crash = p.cutOff
	return p
}

// Start opens the journal and serves at endpoint (unix:///path) until Close. The journal may
// contain entries of an earlier plugin. Start replaces the socket file of a killed plugin. It fails
// if another process uses the socket.
func (p *Plugin) Start(endpoint string) error {
	if p.cfg.Base == "" {
		return errors.New("cannot start the plugin: Config.Base is not set")
	}
	if err := os.MkdirAll(p.store.dir, 0o711); err != nil {
		return fmt.Errorf("cannot start the plugin: %w", err)
	}

	for _, id := range p.cfg.Volumes {
		if err := p.store.make(stored{ID: id, Context: p.cfg.VolumeContext}); err != nil {
			return fmt.Errorf("cannot start the plugin: %w", err)
		}
	}

	socket, err := listen(endpoint, !p.cfg.OldSocket)
	if err != nil {
		return err
	}
	if err := p.rec.open(p.cfg.Journal); err != nil {
		return errors.Join(err, socket.Close())
	}
	if err := p.resume(); err != nil {
		return errors.Join(err, socket.Close(), p.rec.close())
	}

	p.socket = socket
	p.server = grpc.NewServer(grpc.UnaryInterceptor(p.intercept))
	csi.RegisterIdentityServer(p.server, &identity{p: p})
	csi.RegisterControllerServer(p.server, &controller{p: p})
	csi.RegisterNodeServer(p.server, &node{p: p})
	csi.RegisterGroupControllerServer(p.server, &group{p: p})
	go func() { p.serving <- p.server.Serve(&credListener{UnixListener: socket}) }()

	return nil
}

// Serve calls Start, waits until ctx ends, and calls Close.
func (p *Plugin) Serve(ctx context.Context, endpoint string) error {
	if err := p.Start(endpoint); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
	case <-p.crashed:
	case err := <-p.serving:
		p.serving <- err
	}

	return p.Close()
}

// graceful is the maximum time for which Close waits for running calls. Delays and hangs end at
// once.
const graceful = 5 * time.Second

// Close stops the plugin. Calls that wait fail with Unavailable and have no effect. Other calls
// finish. Close removes the socket. As with a real plugin, the mounts remain. Close may be called
// twice, or without Start.
func (p *Plugin) Close() error {
	var err error
	p.once.Do(func() {
		p.halt(errClosed)
		if p.server == nil {
			return
		}

		hurry := time.AfterFunc(graceful, p.server.Stop)
		p.server.GracefulStop()
		hurry.Stop()
		p.work.Wait()
		served := <-p.serving
		if errors.Is(served, grpc.ErrServerStopped) {
			served = nil // Close was called before Serve, so no server was running
		}

		err = errors.Join(served, p.rec.close())
	})

	return err
}

// halt prevents new work and ends waiting calls. It returns true only the first time.
func (p *Plugin) halt(why error) bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	first := p.running.Err() == nil
	p.stop(why)
	return first
}

// enter registers a call or a late effect as running. It returns false if the plugin has stopped.
func (p *Plugin) enter() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.running.Err() != nil {
		return false
	}
	p.work.Add(1)
	return true
}

// Crashed returns a channel that is closed when a Fault has crashed a plugin in this process.
func (p *Plugin) Crashed() <-chan struct{} { return p.crashed }

// cutOff simulates a crash of a plugin in this process. The connections break, the socket file
// remains, and the journal gets no further entries.
func (p *Plugin) cutOff() {
	if !p.halt(errCrashed) {
		return
	}

	p.rec.mute()
	p.socket.SetUnlinkOnClose(false)
	go func() {
		p.server.Stop()
		close(p.crashed)
	}()
}

// killSelf ends a plugin process with SIGKILL.
func killSelf() {
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		panic(err) // if the signal cannot be sent, a panic ends the process
	}
	select {}
}

// Calls returns all calls until now. It includes the calls that earlier plugins wrote to the same
// journal.
func (p *Plugin) Calls() Calls { return p.rec.history().Calls }

// Violations returns all violations until now. It includes the violations that earlier plugins
// wrote to the same journal.
func (p *Plugin) Violations() []Violation { return p.rec.history().Violations }

// Faults returns the Control of the plugin.
func (p *Plugin) Faults() Control { return p.cfg.Faults() }
