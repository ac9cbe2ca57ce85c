package localdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// DriverName is the name that GetPluginInfo returns. It has the form that the CSI specification
// requires.
const DriverName = "local.csi.volagent"

// stopGrace limits how long a stopping driver waits for running calls. The next start of the driver
// cleans up the work that is unfinished at this time, like the leftovers of a crash.
const stopGrace = 10 * time.Second

// Options configures one driver. Endpoint, NodeID and StateDir are required.
type Options struct {
	Endpoint string // the address to listen on, such as "unix:///run/x.sock", or an absolute path
	NodeID   string // the node id that NodeGetInfo returns, at most 256 bytes
	StateDir string // an absolute path, which is created if missing; only one driver may use it
	// the vendor version; if empty, "unknown" is reported, because CSI requires a version
	Version string
	Log     hclog.Logger

	projects projects           // if nil, the quotas of the kernel; tests set a fake
	tap      func(point string) // for tests; see store.StateDir.Tap
	patience time.Duration      // how long a call waits for its copy; 0 means 20 s
	freeze   time.Duration      // how long a freeze may last; 0 means freezeMost
}

// driver contains the state that all CSI services of the driver share.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer

	opts     Options
	log      hclog.Logger
	store    *store.Store
	projects projects
	seen     seen
	held     loopdev.Held
	locks    jobs.Locks
	names    jobs.KeyLock // locks the name of a volume while a call creates the volume
	jobs     jobs.Runner
}

// Run serves CSI on the endpoint until ctx is done. Then it waits for running calls, for at most
// ten seconds, removes its socket, and returns nil. If a dead driver has left its socket, Run
// replaces the socket. Run returns an error if another process listens on the socket, if the path
// is a file of another kind, or if another driver uses the state directory.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return fmt.Errorf("cannot start the local driver: %w", err)
	}

	st, err := store.Open(ctx, o.StateDir, o.Log)
	if err != nil {
		return fmt.Errorf("cannot start the local driver: %w", err)
	}

	st.Tap = o.tap
	d := &driver{opts: o, log: o.Log, store: st, projects: o.projects, jobs: jobs.Runner{Log: o.Log, Patience: o.patience}}
	if d.projects == nil {
		d.projects = kernelProjects{st.Root}
	}
	d.thawLeftovers(ctx)
	if err := d.takeOver(); err != nil {
		d.log.Warn("cannot look for attached loop devices; those of block volumes can be detached while they are in use", "error", err)
	}

	err = serve(ctx, o, d)
	d.jobs.Wait()
	// The store is closed last, because it holds the lock on the state directory.
	return errors.Join(err, d.held.Close(), st.Close())
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

	o.Version = cmp.Or(o.Version, "unknown")
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	if o.patience == 0 {
		o.patience = jobs.Patience
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
	defer d.jobs.Cancel()

	// Leftovers can be large, and volumes can contain many files. So this work runs while the
	// driver already serves calls.
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

	d.jobs.Cancel() // running calls wait for these jobs, so cancel the jobs first
	stop := time.AfterFunc(stopGrace, srv.Stop)
	defer stop.Stop()

	srv.GracefulStop()
	// Serve returns even if it was called after GracefulStop. In any case, it removes the socket.
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("cannot serve on %q: %w", o.Endpoint, err)
	}

	return nil
}

// sweep removes the data that earlier processes of the driver left in trash. If a removal fails,
// the driver tries again at its next start, or when DeleteVolume is called again for the volume.
func (d *driver) sweep(ctx context.Context) {
	for _, id := range d.store.Leftovers() {
		unlock, ok := d.locks.Try(id)
		if !ok {
			continue // a repeated call of DeleteVolume is already removing this data
		}

		err := d.store.Purge(ctx, id)
		unlock()
		if err != nil {
			d.log.Warn("cannot remove deleted data yet", "id", id, "error", err)
		}

		if ctx.Err() != nil {
			return
		}
	}
}
