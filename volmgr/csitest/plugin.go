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

// Plugin is one instance of a plugin. It is safe for concurrent use. A test restarts a plugin in
// its own process by making another Plugin with the same Config.
type Plugin struct {
	cfg     Config
	store   store
	rec     recorder
	server  *grpc.Server
	socket  *net.UnixListener
	serving chan error

	// running ends when the plugin is closed or crashes. Its end also ends delays and hangs.
	running context.Context
	stop    context.CancelCauseFunc
	crashed chan struct{}
	crash   func() // performs the Crash of a Fault
	once    sync.Once
	turns   sync.Map       // volume → *sync.Mutex; see Config.Serial
	work    sync.WaitGroup // the calls and late effects that are running
	gate    sync.Mutex     // prevents new work after the stop
}

// These are the causes for the end of the context running.
var (
	errClosed  = errors.New("the plugin was closed")
	errCrashed = errors.New("the plugin crashed")
)

// New returns a plugin that does not run yet. It has no side effects.
func New(cfg Config) *Plugin {
	p := &Plugin{cfg: cfg.withDefaults(), serving: make(chan error, 1), crashed: make(chan struct{})}
	p.store = store{dir: filepath.Join(p.cfg.Base, "volumes"), base: p.cfg.Base, any: p.cfg.AnyVolume}
	p.running, p.stop = context.WithCancelCause(context.Background())
	p.crash = p.cutOff
	return p
}

// Start opens the journal and serves at endpoint (unix:///path) until Close. The journal may
// contain entries of an earlier plugin. Start replaces the socket file of a killed plugin, but
// fails if a process answers on the socket.
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

// graceful is the time for which Close waits for running calls to end. Close ends delays and hangs
// at once.
const graceful = 5 * time.Second

// Close ends the plugin. Waiting calls answer Unavailable and have no effect, and other calls
// finish. Close removes the socket. Mounts stay, as with a real plugin. Close may be called twice,
// or without Start.
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
			served = nil // Close was called before Serve, so no server is running
		}

		err = errors.Join(served, p.rec.close())
	})

	return err
}

// halt prevents new work and ends waiting calls. It returns true only for the first call of halt.
func (p *Plugin) halt(why error) bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	first := p.running.Err() == nil
	p.stop(why)
	return first
}

// enter registers a piece of work. It returns false if the plugin has stopped.
func (p *Plugin) enter() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.running.Err() != nil {
		return false
	}
	p.work.Add(1)
	return true
}

// Crashed returns a channel. It is closed when the Crash of a Fault has ended a plugin in this
// process.
func (p *Plugin) Crashed() <-chan struct{} { return p.crashed }

// cutOff simulates a crash of a plugin in this process. Connections break, the socket file stays,
// and the journal gets no further entries.
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

// killSelf crashes a plugin process.
func killSelf() {
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		panic(err) // without a signal, a panic ends the process
	}
	select {}
}

// Calls returns all calls so far, including those that earlier plugins wrote to the same journal.
func (p *Plugin) Calls() Calls { return p.rec.history().Calls }

// Violations returns all violations so far, including those that earlier plugins wrote to the same
// journal.
func (p *Plugin) Violations() []Violation { return p.rec.history().Violations }

// Faults returns the Control of the plugin.
func (p *Plugin) Faults() Control { return p.cfg.Faults() }
