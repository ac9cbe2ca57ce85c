package localdriver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

// DriverName is what GetPluginInfo answers, in the form the CSI specification asks of names.
const DriverName = "local.csi.volagent"

// stopGrace bounds the wait for running calls when the driver is told to stop. What a call leaves
// undone then is what a crash would leave, and the next start copes with it.
const stopGrace = 10 * time.Second

// Options says what one driver serves. Endpoint, NodeID and StateDir are required.
type Options struct {
	Endpoint string // where to listen: "unix:///run/x.sock", or an absolute path
	NodeID   string // the answer to NodeGetInfo, at most 256 bytes
	StateDir string // absolute; made when missing; owned by one driver at a time
	Version  string // the vendor version; "unknown" when empty, because CSI wants one
	Log      hclog.Logger

	projects projects           // the kernel's when nil; tests have their own
	tap      func(point string) // see store.tap
	patience time.Duration      // how long a call waits for its copy; 20 s when 0
	freeze   time.Duration      // freezeMost when 0
}

// driver is what the three CSI services share.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer

	opts     Options
	log      hclog.Logger
	store    *store
	projects projects
	seen     seen
	held     held
	busy     keyLock // by id of a volume, snapshot or group
	names    keyLock // by volume name, while one is being created
	readers  readers
	jobs     jobs
}

// Run serves CSI on the endpoint until ctx is done, then finishes the running calls, at most for
// ten seconds, and removes its socket. It returns nil after such a stop. A socket left by a dead
// driver is replaced; one that answers, or a file that is no socket, is an error, and so is a
// state directory in use by another driver.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("cannot start the local driver: %w", err)
	}
	st, err := openStore(ctx, o.StateDir, o.Log)
	if err != nil {
		return fmt.Errorf("cannot start the local driver: %w", err)
	}
	st.tap, st.freezeMost = o.tap, o.freeze
	d := &driver{opts: o, log: o.Log, store: st, projects: o.projects, jobs: jobs{log: o.Log, patience: o.patience}}
	if d.projects == nil {
		d.projects = kernelProjects{st.root}
	}
	d.thawLeftovers(ctx)
	if err := d.takeOver(); err != nil {
		d.log.Warn("cannot look for attached loop devices; those of block volumes can be detached while they are in use", "error", err)
	}
	err = serve(ctx, o, d)
	d.jobs.wg.Wait()
	// The store is closed last, since it holds the lock on the state directory.
	return errors.Join(err, d.held.close(), st.close())
}

func (o *Options) check() error {
	switch {
	case o.NodeID == "":
		return errors.New("the node id is empty")
	case len(o.NodeID) > 256:
		return fmt.Errorf("the node id has %d bytes, and CSI allows 256", len(o.NodeID))
	case !filepath.IsAbs(o.StateDir):
		return fmt.Errorf("the state directory %q is not an absolute path", o.StateDir)
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	if o.patience == 0 {
		o.patience = patience
	}
	if o.freeze == 0 {
		o.freeze = freezeMost
	}
	return nil
}

func serve(ctx context.Context, o Options, d *driver) error {
	lis, err := listen(o.Endpoint)
	if err != nil {
		return err
	}
	srv := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(srv, d)
	csi.RegisterControllerServer(srv, d)
	csi.RegisterGroupControllerServer(srv, d)
	csi.RegisterNodeServer(srv, d)
	defer d.jobs.cancel()

	// Leftovers can be large, and volumes full of files, so they are seen to while calls are being served.
	sweep, stopSweep := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		d.enforceAll(sweep)
		d.sweep(sweep)
	})
	defer wg.Wait()
	defer stopSweep()

	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	o.Log.Info("serving CSI", "driver", DriverName, "endpoint", o.Endpoint, "state_dir", o.StateDir)
	select {
	case err := <-served:
		return fmt.Errorf("cannot serve on %q: %w", o.Endpoint, err)
	case <-ctx.Done():
	}
	d.jobs.cancel() // calls wait for them
	stop := time.AfterFunc(stopGrace, srv.Stop)
	defer stop.Stop()
	srv.GracefulStop()
	// Serve removes the socket, also if it begins only now.
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("cannot serve on %q: %w", o.Endpoint, err)
	}
	return nil
}

// sweep removes what earlier runs left in trash. One that fails is tried again at the next start,
// or when its volume's deletion is asked for again.
func (d *driver) sweep(ctx context.Context) {
	for _, id := range d.store.leftovers() {
		unlock, ok := d.busy.try(id)
		if !ok {
			continue // a repeated DeleteVolume is on it
		}
		err := d.store.purge(ctx, id)
		unlock()
		if err != nil {
			d.log.Warn("cannot remove deleted data yet", "id", id, "error", err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}
