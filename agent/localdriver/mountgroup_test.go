package localdriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func groupCap(m mode, group string) *csi.VolumeCapability {
	c := mountCap(m, "")
	c.GetMount().VolumeMountGroup = group
	return c
}

// needGroups skips the test in a user namespace, where only the user's own group exists.
func needGroups(t *testing.T) {
	t.Helper()
	if sandbox.InUserNamespace(t) {
		t.Skip("in a user namespace no other group can be given anything")
	}
}

func wantOwned(t *testing.T, p string, gid, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	sandbox.Must(t, unix.Lstat(p, &st))
	if st.Gid != gid || st.Mode&0o7777 != mode {
		t.Errorf("%q belongs to group %d with mode %o, want %d and %o", p, st.Gid, st.Mode&0o7777, gid, mode)
	}
}

func TestMountGroup(t *testing.T) {
	needGroups(t)
	for _, params := range []map[string]string{nil, image("ext4")} {
		b := newBench(t)
		id := b.create("v", 16*mib, params, mountCap(writer, ""))
		stg := b.staging(id)
		sandbox.Must(t, b.stage(id, mountCap(writer, "")))
		out := b.path("out")
		sandbox.Write(t, out, "precious")
		sandbox.Must(t, os.Chmod(out, 0o600))
		sandbox.Mkdir(t, stg, "d", "e")
		sandbox.Must(t, os.Chmod(filepath.Join(stg, "d"), 0o700))
		sandbox.Write(t, filepath.Join(stg, "d", "e", "f"), "kept")
		// the kernel clears the set-user-ID bit when the driver changes the file's owner
		sandbox.Must(t, os.Chmod(filepath.Join(stg, "d", "e", "f"), 0o4640))
		sandbox.Must(t, os.Symlink(out, filepath.Join(stg, "link")))
		sandbox.Must(t, os.Symlink(b.dir, filepath.Join(stg, "d", "dirlink")))
		sandbox.Must(t, unix.Mkfifo(filepath.Join(stg, "d", "pipe"), 0o600))
		sandbox.Must(t, b.unstage(id))

		c, target := groupCap(multiWriter, "4242"), b.path("t")
		sandbox.Must(t, b.stage(id, c))
		sandbox.Must(t, b.publish(id, target, c, true))
		wantOwned(t, target, 4242, 0o2775)
		wantOwned(t, filepath.Join(target, "d"), 4242, 0o2770)
		wantOwned(t, filepath.Join(target, "d", "e"), 4242, 0o2775)
		wantOwned(t, filepath.Join(target, "d", "e", "f"), 4242, 0o660)
		wantOwned(t, filepath.Join(target, "d", "pipe"), 4242, 0o660)
		wantOwned(t, filepath.Join(target, "link"), 4242, 0o777)
		wantOwned(t, out, 0, 0o600)
		if st, err := os.Stat(b.dir); err != nil || st.Mode()&os.ModeSetgid != 0 {
			t.Errorf("a link was followed out of the volume: %v (%v)", st.Mode(), err)
		}

		// If the root already belongs to the group, the driver does not examine the files below it.
		sandbox.Must(t, os.Chown(filepath.Join(stg, "d"), 0, 7))
		sandbox.Must(t, b.publish(id, b.path("t2"), c, false))
		sandbox.Must(t, b.stage(id, c))
		wantOwned(t, filepath.Join(stg, "d"), 7, 0o2770)

		// The driver does not change a mode that a user has set.
		sandbox.Must(t, unix.Chmod(stg, 0o750))
		sandbox.Must(t, b.stage(id, c))
		wantOwned(t, stg, 4242, 0o750)

		sandbox.WantCode(t, b.publish(id, b.path("t3"), groupCap(multiWriter, "5"), false), codes.FailedPrecondition, "another group", "group 5")
		sandbox.Must(t, b.unpublish(id, b.path("t2")))
		sandbox.Must(t, b.unpublish(id, target))
		sandbox.Must(t, b.publish(id, b.path("t3"), groupCap(multiWriter, "5"), false))
		wantOwned(t, filepath.Join(stg, "d"), 5, 0o2770)
		wantOwned(t, stg, 5, 0o2770)
		b.clear(id, b.path("t3"))
	}
}

func TestMountGroupRefused(t *testing.T) {
	b := newBench(t)
	for _, group := range []string{"root", "-1", "4294967295", "4294967296", "1 2", "0x1"} {
		_, err := b.CreateVolume(background(), createReq("v", 0, nil, groupCap(writer, group)))
		sandbox.WantCode(t, err, codes.InvalidArgument, group, "number of a group")
	}
	needGroups(t)
	id := b.create("v", 16*mib, image("ext4"), mountCap(writer, ""))
	c := groupCap(writer, "4242")
	c.GetMount().MountFlags = []string{"ro"}
	sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "read-only")
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, b.stage(id, groupCap(writer, "0")))
	wantOwned(t, b.staging(id), 0, 0o2775)
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, b.stage(id, groupCap(writer, "4242")))
	sandbox.Must(t, b.unstage(id))
	// a read-only staging works now, because the volume already belongs to the group
	sandbox.Must(t, b.stage(id, c))
	b.clear(id)
}

// TestMountGroupPrepared gives a group a volume that its user has prepared for an attack. The user
// wants to run a program as this group later, or to keep access through an access control list.
func TestMountGroupPrepared(t *testing.T) {
	needGroups(t)
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	data := filepath.Join(b.state, store.DirVolumes, id, store.DataDir)
	sandbox.Write(t, filepath.Join(data, "trap"), "x")
	sandbox.Must(t, unix.Chmod(filepath.Join(data, "trap"), 0o2700))
	deepen(t, data, 1200)
	sandbox.Must(t, unix.Setxattr(data, "system.posix_acl_access", acl(1234), 0))
	sandbox.Must(t, b.stage(id, groupCap(writer, "4242")))
	wantOwned(t, filepath.Join(data, "trap"), 4242, 0o770)
	wantOwned(t, data, 4242, 0o2774)
	if _, err := unix.Getxattr(data, "system.posix_acl_access", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the root still has an access control list: %v", err)
	}
	b.clear(id)
}

// TestMountGroupCutShort simulates a change of the group that was interrupted before it reached the
// root. The driver must repeat the whole change. It must not change a filesystem that is mounted
// inside the volume.
func TestMountGroupCutShort(t *testing.T) {
	needGroups(t)
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	data := filepath.Join(b.state, store.DirVolumes, id, store.DataDir)
	deep := sandbox.Mkdir(t, data, strings.Repeat("d/", 300))
	sandbox.Mkdir(t, data, "mnt")
	sandbox.Must(t, b.stage(id, mountCap(writer, "")))
	sandbox.Tmpfs(t, filepath.Join(b.staging(id), "mnt"), "size=64k,mode=0700")
	sandbox.Write(t, filepath.Join(b.staging(id), "mnt", "f"), "not the volume's")
	ctx, cancel := context.WithCancel(background())
	cancel()
	fd, err := mounts.OpenWritable(b.staging(id))
	sandbox.Must(t, err)
	if err := giveTree(ctx, fd, 4242); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	sandbox.Must(t, unix.Close(fd))
	sandbox.Must(t, os.Chown(filepath.Join(data, "d"), 0, 4242))
	sandbox.Must(t, b.stage(id, groupCap(writer, "4242")))
	wantOwned(t, deep, 4242, 0o2775)
	wantOwned(t, filepath.Join(data, "mnt"), 4242, 0o2775)
	wantOwned(t, filepath.Join(b.staging(id), "mnt"), 0, 0o700)
	sandbox.Must(t, unix.Unmount(filepath.Join(b.staging(id), "mnt"), 0))
	b.clear(id)
}
