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

// Plugin is one incarnation of a plugin. It is safe for use by many goroutines.
// To restart one in process, make another with the same Config.
type Plugin struct {
	cfg     Config
	store   store
	rec     recorder
	server  *grpc.Server
	socket  *net.UnixListener
	serving chan error

	// running is open until Close, and until a crash. It ends delays and hangs.
	running context.Context
	stop    context.CancelCauseFunc
	crashed chan struct{}
	crash   func() // what a Fault's Crash does
	once    sync.Once
	turns   sync.Map       // volume → *sync.Mutex; see Config.Serial
	work    sync.WaitGroup // calls, and effects that come later
	gate    sync.Mutex     // no work is added once stopped
}

// Why running ended.
var (
	errClosed  = errors.New("the plugin was closed")
	errCrashed = errors.New("the plugin crashed")
)

// New makes a plugin and touches nothing; Start does.
func New(cfg Config) *Plugin {
	p := &Plugin{cfg: cfg.withDefaults(), serving: make(chan error, 1), crashed: make(chan struct{})}
	p.store = store{dir: filepath.Join(p.cfg.Base, "volumes"), base: p.cfg.Base, any: p.cfg.AnyVolume}
	p.running, p.stop = context.WithCancelCause(context.Background())
	p.crash = p.cutOff
	return p
}

// Start opens the journal, with what an earlier plugin wrote there, and serves
// at endpoint (unix:///path) until Close. A socket file that a killed plugin
// left is replaced, one that somebody answers at is an error.
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

// Serve is Start, the wait for the end of ctx, and Close.
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

// graceful is how long Close lets calls end by themselves. Delays and hangs
// are cut at once.
const graceful = 5 * time.Second

// Close ends the plugin: calls that wait answer Unavailable without an effect,
// others are finished; the socket goes. Mounts stay, as those of a real plugin
// do. Closing twice, or without a start, is no error.
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
			served = nil // stopped before it had begun
		}
		err = errors.Join(served, p.rec.close())
	})
	return err
}

// halt lets no more work in and ends what waits. Only the first one is told
// true.
func (p *Plugin) halt(why error) bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	first := p.running.Err() == nil
	p.stop(why)
	return first
}

// enter counts one piece of work, unless the plugin has stopped.
func (p *Plugin) enter() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.running.Err() != nil {
		return false
	}
	p.work.Add(1)
	return true
}

// Crashed is closed when a Fault's Crash ended a plugin in process.
func (p *Plugin) Crashed() <-chan struct{} { return p.crashed }

// cutOff is the crash of a plugin in process: connections break, the socket
// file stays, and the journal says no more.
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

// killSelf is the crash of a child process.
func killSelf() {
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		panic(err) // ends the process as well
	}
	select {}
}

// Calls are all calls so far, those to earlier plugins of the journal included.
func (p *Plugin) Calls() Calls { return p.rec.history().Calls }

// Violations are all broken rules so far, as Calls.
func (p *Plugin) Violations() []Violation { return p.rec.history().Violations }

// Faults commands the plugin.
func (p *Plugin) Faults() Control { return p.cfg.Faults() }
