package localdriver

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

type mode = csi.VolumeCapability_AccessMode_Mode

const (
	writer       = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	singleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	readerOnly   = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
)

func mountCap(m mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: m},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
	}
}

func blockCap(m mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: m},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

// bench is a driver with its directories and clients, for use in a test.
type bench struct {
	t     *testing.T
	dir   string
	state string
	stop  func()

	projects projects // the quotas that the driver uses; if nil, the quotas of the kernel

	csi.IdentityClient
	csi.ControllerClient
	csi.GroupControllerClient
	csi.NodeClient

	tap func(point string)
	// patience is how long a call of the driver waits for its copy. The default is long enough for
	// a busy machine.
	patience time.Duration
	// freeze is how long a freeze may last. The default is long enough for a busy machine.
	freeze time.Duration
}

// newBench starts a driver in this process.
func newBench(t *testing.T) *bench {
	t.Helper()
	dir := sandbox.ShortDir(t)
	return startBench(t, &bench{t: t, dir: dir, state: filepath.Join(dir, "state")})
}

func startBench(t *testing.T, b *bench) *bench {
	t.Helper()
	dir := b.dir
	b.start()
	t.Cleanup(func() {
		b.stop()
		if left := sandbox.LoopsLeft(dir); len(left) > 0 {
			t.Errorf("loop devices are left behind: %v", left)
		}
	})
	return b
}

func (b *bench) start() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(background())
	done := make(chan error, 1)
	sock := filepath.Join(b.dir, "csi.sock")
	go func() {
		done <- Run(ctx, Options{Endpoint: "unix://" + sock, NodeID: "node-1", StateDir: b.state, Version: "test",
			projects: b.projects, tap: b.tap, patience: cmp.Or(b.patience, 5*time.Minute), freeze: cmp.Or(b.freeze, time.Minute),
			Log: hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Error})})
	}()
	conn := b.dial(sock)
	b.stop = func() {
		b.t.Helper()
		b.stop = func() {}
		sandbox.Must(b.t, conn.Close())
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("the driver ended with: %v", err)
		}
	}
}

func (b *bench) dial(sock string) *grpc.ClientConn {
	b.t.Helper()
	conn, err := grpc.NewClient("unix:"+sock, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Without this minimum, gRPC would limit each attempt to connect to the short delay between
		// attempts. On a busy machine, this would be too short.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 20 * time.Second, Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}}))
	sandbox.Must(b.t, err)
	b.IdentityClient, b.ControllerClient, b.NodeClient = csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	b.GroupControllerClient = csi.NewGroupControllerClient(conn)
	ctx, cancel := context.WithTimeout(background(), 2*time.Minute)
	defer cancel()
	_, err = b.Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
	sandbox.Must(b.t, err)
	return conn
}

func (b *bench) restart() {
	b.t.Helper()
	b.stop()
	b.start()
}

// create makes a volume and returns its id.
func (b *bench) create(name string, size int64, params map[string]string, caps ...*csi.VolumeCapability) string {
	b.t.Helper()
	resp, err := b.CreateVolume(background(), &csi.CreateVolumeRequest{
		Name: name, Parameters: params, VolumeCapabilities: caps,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	sandbox.Must(b.t, err)
	return resp.GetVolume().GetVolumeId()
}

func (b *bench) delete(id string) error {
	_, err := b.DeleteVolume(background(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (b *bench) listed() []string {
	b.t.Helper()
	resp, err := b.ListVolumes(background(), &csi.ListVolumesRequest{})
	sandbox.Must(b.t, err)
	var ids []string
	for _, e := range resp.GetEntries() {
		ids = append(ids, e.GetVolume().GetVolumeId())
	}
	return ids
}

// path returns a path in the directory of the test.
func (b *bench) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// staging makes the staging directory, as the caller of a plugin does.
func (b *bench) staging(id string) string {
	b.t.Helper()
	p := b.path("staging-" + id)
	// The path may be the mount point of a filesystem that no longer responds. Unlike MkdirAll,
	// Mkdir does not access such a filesystem.
	if err := os.Mkdir(p, 0o750); !errors.Is(err, fs.ErrExist) {
		sandbox.Must(b.t, err)
	}
	return p
}

func (b *bench) stage(id string, c *csi.VolumeCapability) error {
	b.t.Helper()
	_, err := b.NodeStageVolume(background(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: b.staging(id), VolumeCapability: c,
	})
	return err
}

func (b *bench) unstage(id string) error {
	b.t.Helper()
	_, err := b.NodeUnstageVolume(background(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: b.staging(id)})
	return err
}

func (b *bench) publish(id, target string, c *csi.VolumeCapability, readOnly bool) error {
	b.t.Helper()
	_, err := b.NodePublishVolume(background(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: b.staging(id), TargetPath: target, VolumeCapability: c, Readonly: readOnly,
	})
	return err
}

func (b *bench) unpublish(id, target string) error {
	_, err := b.NodeUnpublishVolume(background(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

func (b *bench) stats(id, path string) (*csi.NodeGetVolumeStatsResponse, error) {
	return b.NodeGetVolumeStats(background(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
}

// clear unpublishes, unstages and deletes a volume in any state.
func (b *bench) clear(id string, targets ...string) {
	b.t.Helper()
	for _, p := range targets {
		sandbox.Must(b.t, b.unpublish(id, p))
		sandbox.WantGone(b.t, p)
	}
	sandbox.Must(b.t, b.unstage(id))
	sandbox.Must(b.t, b.delete(id))
}

func (b *bench) loops(id string) []loopdev.LoopDevice {
	b.t.Helper()
	l, err := loopdev.LoopsOf(id, filepath.Join(b.state, store.DirVolumes, id, store.ImageFile))
	sandbox.Must(b.t, err)
	return l
}

func mountID(t *testing.T, p string) uint64 {
	t.Helper()
	st, err := mounts.StatPath(p)
	sandbox.Must(t, err)
	if !st.MountRoot {
		t.Fatalf("nothing is mounted at %q", p)
	}
	return st.MountID
}

func wantNotMounted(t *testing.T, p string) {
	t.Helper()
	st, err := mounts.StatPath(p)
	sandbox.Must(t, err)
	if st.MountRoot {
		t.Fatalf("%q is mounted", p)
	}
}
