package localdriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// newBenchOn starts a driver whose state directory is on a separate filesystem of the given type.
func newBenchOn(t *testing.T, fsType string) *bench {
	t.Helper()
	sandbox.NeedLoops(t)
	b := &bench{t: t, dir: sandbox.ShortDir(t)}
	b.state = sandbox.Mkdir(t, b.dir, "state")
	disk := sandbox.ShortDir(t)
	// the disk is a file in memory, so the test does not wait for a real disk
	sandbox.Tmpfs(t, disk, "size=1100m")
	img := sandbox.SparseFile(t, filepath.Join(disk, "disk"), 1*gib)
	sandbox.Must(t, imagefs.Format(background(), fsType, img))
	sandbox.Command(t, "mount", "-o", "loop", "-t", fsType, img, b.state)
	t.Cleanup(func() {
		sandbox.Must(t, unix.Unmount(b.state, unix.UMOUNT_NOFOLLOW))
		sandbox.Await(t, "the state directory's device is free", func() bool { return len(sandbox.LoopsUnder(disk)) == 0 })
	})
	return startBench(t, b)
}

func snapReq(name, source string) *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source}
}

// snap takes a snapshot and returns its id.
func (b *bench) snap(name, source string) string {
	b.t.Helper()
	resp, err := b.CreateSnapshot(background(), snapReq(name, source))
	sandbox.Must(b.t, err)
	if !resp.GetSnapshot().GetReadyToUse() {
		b.t.Errorf("snapshot %q is not ready", name)
	}
	return resp.GetSnapshot().GetSnapshotId()
}

func (b *bench) unsnap(id string) error {
	_, err := b.DeleteSnapshot(background(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func fromSnap(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func copyReq(name string, src *csi.VolumeContentSource, caps ...*csi.VolumeCapability) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, VolumeContentSource: src, VolumeCapabilities: caps}
}

// copyOf makes a volume as a copy of a source and returns its id.
func (b *bench) copyOf(name string, src *csi.VolumeContentSource, caps ...*csi.VolumeCapability) string {
	b.t.Helper()
	resp, err := b.CreateVolume(background(), copyReq(name, src, caps...))
	sandbox.Must(b.t, err)
	return resp.GetVolume().GetVolumeId()
}

func (b *bench) snapshots(req *csi.ListSnapshotsRequest) []string {
	b.t.Helper()
	resp, err := b.ListSnapshots(background(), req)
	sandbox.Must(b.t, err)
	var ids []string
	for _, e := range resp.GetEntries() {
		ids = append(ids, e.GetSnapshot().GetSnapshotId())
	}
	return ids
}

// data returns the directory with the files of a directory volume.
func (b *bench) data(id string) string {
	return filepath.Join(b.state, store.DirVolumes, id, store.DataDir)
}

// wantNothingHalf waits until the directories of unfinished work are empty: tmp, trash and frozen.
func (b *bench) wantNothingHalf() {
	b.t.Helper()
	sandbox.Await(b.t, "tmp and trash are empty", func() bool {
		for _, d := range []string{store.DirTmp, store.DirTrash, store.DirFrozen} {
			list, err := os.ReadDir(filepath.Join(b.state, d))
			if err != nil || len(list) > 0 {
				return false
			}
		}
		return true
	})
}

// dying starts a driver process that kills itself at the given point. The returned function waits
// until the process has ended.
func (b *bench) dying(point string) (died func()) {
	b.t.Helper()
	sock := b.path("csi.sock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sandbox.EnvMode+"="+modeDriver, envDie+"="+point, "CSI_ENDPOINT="+sock, "STATE_DIR="+b.state)
	sandbox.Must(b.t, cmd.Start())
	conn := b.dial(sock)
	return func() {
		b.t.Helper()
		// The signal has no effect if the driver has already killed itself.
		_ = cmd.Process.Signal(unix.SIGTERM)
		err := cmd.Wait()
		sandbox.Must(b.t, conn.Close())
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != unix.SIGKILL {
			b.t.Errorf("the driver did not kill itself at %q: %v", point, err)
		}
	}
}

// restartOn restarts the driver with a new tap.
func (b *bench) restartOn(tap func(point string)) {
	b.t.Helper()
	b.stop()
	b.tap = tap
	b.start()
}

// gate is a tap that blocks every call at one point until the gate is opened.
type gate struct {
	point   string
	reached chan struct{}
	open    chan struct{}
}

func newGate(point string) *gate {
	return &gate{point, make(chan struct{}, 64), make(chan struct{})}
}

func (g *gate) tap(point string) {
	if point == g.point {
		g.reached <- struct{}{}
		<-g.open
	}
}
