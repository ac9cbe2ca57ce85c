package localdriver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/volmgr/proc"
)

// wantHealth requests the health of one volume and of all volumes, from the node and from the
// controller. Each answer must match want.
func (b *bench) wantHealth(id, want string, words ...string) {
	b.t.Helper()
	node, err := b.NodeGetVolumeHealth(background(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	sandbox.Must(b.t, err)
	one, err := b.ControllerGetVolumeHealth(background(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
	sandbox.Must(b.t, err)
	all, err := b.ControllerListVolumeHealth(background(), &csi.ControllerListVolumeHealthRequest{})
	sandbox.Must(b.t, err)
	listed := ""
	for _, h := range all.GetEntries() {
		if h.GetVolumeId() == id {
			listed = sandbox.Statuses(h)
		}
	}
	if n, c := sandbox.Statuses(node.GetVolumeHealth()), sandbox.Statuses(one.GetVolumeHealth()); n != want || c != want || listed != want {
		b.t.Errorf("the node says %q, the controller %q and the list %q, want %q", n, c, listed, want)
	}
	for _, w := range words {
		if !strings.Contains(node.String(), w) {
			b.t.Errorf("%v does not say %q", node, w)
		}
	}
}

func TestHealthOfData(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id, bad := b.create("d", 0, nil, c), b.create("bad", 0, nil, c)
	b.wantHealth(id, "")
	data := filepath.Join(b.state, store.DirVolumes, id, store.DataDir)
	sandbox.Must(t, os.Rename(data, data+"-away"))
	b.wantHealth(id, "DATA_LOSS DataMissing", "directory")
	sandbox.Must(t, os.Rename(data+"-away", data))
	b.wantHealth(id, "")
	sandbox.Write(t, filepath.Join(b.state, store.DirVolumes, bad, store.MetaFile), "{")
	b.restart()
	b.wantHealth(bad, "INACCESSIBLE MetadataUnreadable", bad)
	b.wantHealth(id, "")
	if sandbox.InUserNamespace(t) {
		return
	}
	img := b.create("i", 16*mib, image("ext4"), c)
	sandbox.Must(t, b.stage(img, c))
	b.wantHealth(img, "")
	sandbox.Must(t, b.unstage(img))
	path := filepath.Join(b.state, store.DirVolumes, img, store.ImageFile)
	sandbox.Must(t, os.Truncate(path, 15*mib))
	b.wantHealth(img, "DATA_LOSS ImageTruncated", fmt.Sprint(15*mib), fmt.Sprint(16*mib))
	sandbox.Must(t, os.Remove(path))
	b.wantHealth(img, "DATA_LOSS DataMissing", "image")
}

// TestHealthOfFilesystems causes errors and shutdowns in filesystems that are in use. When such a
// volume is staged again, the driver must repair the filesystem.
func TestHealthOfFilesystems(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	target := b.path("t")
	for _, c := range []struct {
		fsType, want string
		flags        []string
		harm         func(id string)
	}{
		{"ext4", "DEGRADED FilesystemErrors", nil, b.ext4Error},
		{"ext4", "DEGRADED FilesystemReadOnly, DEGRADED FilesystemErrors", []string{"errors=remount-ro"}, b.ext4Error},
		{"ext4", "INACCESSIBLE FilesystemShutDown", nil, b.shutDown},
		{"xfs", "INACCESSIBLE FilesystemShutDown", nil, b.shutDown},
	} {
		fs, _ := imagefs.FindFilesystem(c.fsType)
		capability := mountCap(writer, c.fsType, c.flags...)
		id := b.create("v", fs.MinSize, image(c.fsType), capability)
		sandbox.Must(t, b.stage(id, capability))
		sandbox.Must(t, b.publish(id, target, capability, false))
		b.wantHealth(id, "")
		c.harm(id)
		if dead, err := os.ReadFile(proc.OwnMounts); err == nil && c.want == "INACCESSIBLE FilesystemShutDown" && c.fsType == "ext4" && !strings.Contains(string(dead), ",shutdown") {
			t.Logf("this kernel does not tell that an ext4 is shut down")
			b.clear(id, target)
			continue
		}
		last := ""
		sandbox.Await(t, c.want, func() bool {
			resp, err := b.NodeGetVolumeHealth(background(), &csi.NodeGetVolumeHealthRequest{
				VolumeId: id, StagingTargetPath: b.staging(id), VolumePublishPath: target})
			sandbox.Must(t, err)
			if now := resp.GetVolumeHealth().String(); now != last {
				last = now
				t.Log(now)
			}
			return sandbox.Statuses(resp.GetVolumeHealth()) == c.want
		})
		b.wantHealth(id, c.want)
		sandbox.Must(t, b.unpublish(id, target))
		sandbox.Must(t, b.unstage(id))
		b.wantHealth(id, "")
		sandbox.Must(t, b.stage(id, capability))
		b.wantHealth(id, "")
		b.clear(id)
	}
}

func (b *bench) ext4Error(id string) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join("/sys/fs/ext4", b.loops(id)[0].Name, "trigger_fs_error"), os.O_WRONLY, 0)
	sandbox.Must(b.t, err)
	_, err = f.WriteString("a test's")
	sandbox.Must(b.t, err)
	sandbox.Must(b.t, f.Close())
}

func (b *bench) shutDown(id string) {
	b.t.Helper()
	f, err := os.Open(b.staging(id))
	sandbox.Must(b.t, err)
	const shutdown = 0x8004587d
	sandbox.Must(b.t, unix.IoctlSetPointerInt(int(f.Fd()), shutdown, 2))
	sandbox.Must(b.t, f.Close())
}

// TestShutDown shuts down an xfs. A filesystem in this state does not even answer statx. The driver
// must be able to unmount the filesystem, and must not treat it as staged.
func TestShutDown(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c, target := mountCap(multiWriter, "xfs"), b.path("t")
	id := b.create("v", 300*mib, image("xfs"), c)
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	b.shutDown(id)
	sandbox.Must(t, unix.Unmount(target, 0))
	sandbox.Must(t, unix.Mount(b.staging(id), target, "", unix.MS_BIND, ""))
	for range 2 {
		sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "shut down")
		sandbox.WantCode(t, b.publish(id, b.path("t2"), c, false), codes.FailedPrecondition, "shut down")
		sandbox.WantCode(t, b.nodeExpand(id, target, 0), codes.FailedPrecondition, "shut down")
		b.restart()
	}
	other := b.create("other", 0, nil, mountCap(writer, ""))
	sandbox.WantCode(t, b.unpublish(other, target), codes.FailedPrecondition, "so it stays")
	sandbox.Must(t, b.delete(other))
	sandbox.Must(t, b.unpublish(id, target))
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	sandbox.Write(t, filepath.Join(target, "f"), "")
	b.clear(id, target)
}

func TestHealthOfPaths(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	target := b.path("t")
	ask := func(staging, publish string) (*csi.NodeGetVolumeHealthResponse, error) {
		return b.NodeGetVolumeHealth(background(), &csi.NodeGetVolumeHealthRequest{VolumeId: id, StagingTargetPath: staging, VolumePublishPath: publish})
	}
	want := func(staging, publish, want string) {
		t.Helper()
		resp, err := ask(staging, publish)
		sandbox.Must(t, err)
		if got := sandbox.Statuses(resp.GetVolumeHealth()); got != want {
			t.Errorf("got %v, want %q", resp, want)
		}
	}
	sandbox.Must(t, b.stage(id, c))
	want(b.staging(id), "", "")
	want(b.staging(id), target, "INACCESSIBLE NotMounted")
	sandbox.Must(t, os.Mkdir(target, 0o755))
	sandbox.Tmpfs(t, target, "size=64k")
	want(b.staging(id), target, "INACCESSIBLE OtherMount")
	sandbox.Must(t, unix.Unmount(target, 0))
	sandbox.Must(t, b.publish(id, target, c, false))
	want(b.staging(id), target, "")
	_, err := ask("relative", "")
	sandbox.WantCode(t, err, codes.InvalidArgument, "relative")
	b.clear(id, target)
	_, err = ask("", "")
	sandbox.WantCode(t, err, codes.NotFound, id)
	_, err = b.ControllerGetVolumeHealth(background(), &csi.ControllerGetVolumeHealthRequest{})
	sandbox.WantCode(t, err, codes.InvalidArgument, "id is empty")
}

// TestHealthOfDeleted requests the health of a volume during its deletion. The driver must not
// report the removed data as lost.
func TestHealthOfDeleted(t *testing.T) {
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	b.stop()
	st, err := store.Open(background(), b.state, hclog.NewNullLogger())
	sandbox.Must(t, err)
	d := &driver{store: st, projects: kernelProjects{st.Root}}
	unlock, ok := d.locks.Try(id)
	if !ok {
		t.Fatal("a new lock is taken")
	}
	// Do only the first step of DeleteVolume.
	sandbox.Must(t, st.Move(id, store.DirVolumes, store.DirTrash))
	_, err = d.health(id)
	sandbox.WantCode(t, csierr.ToStatus(err), codes.Aborted)
	all, err := d.ControllerListVolumeHealth(background(), &csi.ControllerListVolumeHealthRequest{})
	sandbox.Must(t, err)
	if len(all.GetEntries()) > 0 {
		t.Errorf("listed: %v", all)
	}
	unlock()
	sandbox.Must(t, st.Close())
}

func TestHealthPages(t *testing.T) {
	b := newBench(t)
	var sick []string
	for i := range 7 {
		id := b.create(fmt.Sprint(i), 0, nil, mountCap(writer, ""))
		if i%3 != 0 {
			sandbox.Must(t, os.Remove(filepath.Join(b.state, store.DirVolumes, id, store.DataDir)))
			sick = append(sick, id)
		}
	}
	slices.Sort(sick)
	var got []string
	for token := "-"; token != ""; {
		resp, err := b.ControllerListVolumeHealth(background(), &csi.ControllerListVolumeHealthRequest{MaxEntries: 3, StartingToken: strings.Trim(token, "-")})
		sandbox.Must(t, err)
		for _, h := range resp.GetEntries() {
			got = append(got, h.GetVolumeId())
		}
		token = resp.GetNextToken()
	}
	if !slices.Equal(got, sick) {
		t.Errorf("pages gave %v, want %v", got, sick)
	}
	_, err := b.ControllerListVolumeHealth(background(), &csi.ControllerListVolumeHealthRequest{StartingToken: "../x"})
	sandbox.WantCode(t, err, codes.Aborted, "start again")
	_, err = b.ControllerListVolumeHealth(background(), &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})
	sandbox.WantCode(t, err, codes.InvalidArgument, "max_entries")
}

// TestStorageHealth fills the disk below sparse images.
func TestStorageHealth(t *testing.T) {
	b := newBench(t)
	sandbox.Must(t, os.Mkdir(b.path("small"), 0o755))
	sandbox.Tmpfs(t, b.path("small"), "size=32m")
	t.Cleanup(func() { b.stop() }) // the driver must stop before the test unmounts its filesystem
	b.stop()
	b.state = b.path("small", "state")
	b.start()
	health := func() []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
		t.Helper()
		resp, err := b.NodeGetStorageHealth(background(), &csi.NodeGetStorageHealthRequest{})
		sandbox.Must(t, err)
		return resp.GetBackendHealth()
	}
	if got := sandbox.Backends(health()); got != "" {
		t.Errorf("an empty disk: %q", got)
	}
	if !sandbox.InUserNamespace(t) {
		b.create("i", 30*mib, image(""), blockCap(writer))
	}
	filler := b.path("small", "filler")
	sandbox.Must(t, os.WriteFile(filler, make([]byte, 31*mib-256<<10), 0o600))
	got := health()
	if sandbox.Backends(got) != "STORAGE_DEGRADED DiskNearlyFull" {
		t.Errorf("got %v", got)
	}
	if !sandbox.InUserNamespace(t) && !strings.Contains(got[0].GetMessage(), fmt.Sprintf("may still take %d", 30*mib)) {
		t.Errorf("got %v", got)
	}
	sandbox.Must(t, os.WriteFile(filler, make([]byte, 32*mib-256<<10), 0o600))
	if got := health(); sandbox.Backends(got) != "STORAGE_DEGRADED DiskFull" {
		t.Errorf("got %v", got)
	}
	sandbox.Must(t, os.Remove(filler))
	sandbox.Must(t, os.Rename(filepath.Join(b.state, store.DirVolumes), filepath.Join(b.state, "away")))
	if got := health(); sandbox.Backends(got) != "STORAGE_UNREACHABLE StateDirUnavailable" {
		t.Errorf("got %v", got)
	}
	sandbox.Must(t, os.Rename(filepath.Join(b.state, "away"), filepath.Join(b.state, store.DirVolumes)))
}
