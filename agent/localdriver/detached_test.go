package localdriver

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// detachBehind detaches a loop device as "losetup -d" does, without the driver's knowledge.
func detachBehind(t *testing.T, l loopdev.LoopDevice) {
	t.Helper()
	sandbox.Must(t, loopdev.WithDevice(l.Path(), func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) }))
}

func rdevAt(t *testing.T, p string) uint64 {
	t.Helper()
	st, err := mounts.StatPath(p)
	sandbox.Must(t, err)
	if !st.IsBlock() {
		t.Fatalf("%q is no block device", p)
	}
	return st.Rdev
}

// TestDetachedBehind detaches the device of a published block volume without the driver's
// knowledge. While a target of the volume still refers to this device, the device must not serve
// another volume.
func TestDetachedBehind(t *testing.T) {
	sandbox.NeedLoops(t)
	for name, running := range map[string]bool{"with the driver": true, "without the driver": false} {
		t.Run(name, func(t *testing.T) {
			for detachedBehind(t, running) {
				t.Log("another test took the number of the device; once more")
			}
		})
	}
}

// detachedBehind runs the test once. While no driver runs, another program on the host may take the
// detached device. In that case, detachedBehind returns true, and the caller must run the test
// again.
func detachedBehind(t *testing.T, running bool) (again bool) {
	t.Helper()
	c := blockCap(multiWriter)
	b := newBench(t)
	one, two := b.create("one", mib, image(""), c), b.create("two", mib, image(""), c)
	sandbox.Must(t, b.stage(one, c))
	sandbox.Must(t, b.publish(one, b.path("one"), c, false))
	was := b.loops(one)[0]
	if !running {
		b.stop()
	}
	detachBehind(t, was)
	if !running {
		b.start()
	}
	sandbox.Must(t, b.stage(two, c))
	sandbox.Must(t, b.publish(two, b.path("two"), c, false))
	if rdevAt(t, b.path("one")) == rdevAt(t, b.path("two")) {
		t.Error("the targets of both volumes are one device")
	}
	// A program outside this test has taken the device.
	if _, err := os.Stat("/sys/block/" + was.Name + "/loop"); err == nil && !running {
		sandbox.Must(t, unix.Unmount(b.path("one"), 0))
		b.clear(one, b.path("one"))
		b.clear(two, b.path("two"))
		return true
	}
	if running {
		if l := b.loops(one); len(l) != 1 || l[0].Name != was.Name {
			t.Errorf("attached: %v, want %s still", l, was.Name)
		}
	} else {
		sandbox.WantCode(t, b.publish(one, b.path("one"), c, false), codes.FailedPrecondition, "not staged")
	}
	sandbox.Must(t, b.unpublish(one, b.path("one")))
	sandbox.Must(t, b.unstage(one))
	sandbox.Must(t, b.stage(one, c))
	sandbox.Must(t, b.publish(one, b.path("one"), c, false))
	wantOwnImage(t, b, one, b.path("one"))
	wantOwnImage(t, b, two, b.path("two"))
	b.clear(one, b.path("one"))
	b.clear(two, b.path("two"))
	return false
}

// wantOwnImage writes through a target and checks that the data arrives in the image of its volume.
func wantOwnImage(t *testing.T, b *bench, id, target string) {
	t.Helper()
	pattern := bytes.Repeat([]byte(id), 4096)[:4096]
	f, err := os.OpenFile(target, os.O_WRONLY, 0)
	sandbox.Must(t, err)
	_, err = f.Write(pattern)
	sandbox.Must(t, err)
	sandbox.Must(t, f.Sync())
	sandbox.Must(t, f.Close())
	img, err := os.ReadFile(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile))
	sandbox.Must(t, err)
	if !bytes.HasPrefix(img, pattern) {
		t.Errorf("what was written at %q is not in the image of volume %q", target, id)
	}
}

// bindElsewhere starts a process that bind-mounts one file on another in its own mount namespace,
// as a container runtime does. The returned function ends the process.
func bindElsewhere(t *testing.T, from, to string) (end func()) {
	t.Helper()
	sandbox.Write(t, to, "")
	cmd := exec.Command("sh", "-c", `mount --bind "$1" "$2" && echo bound && exec sleep infinity`, "sh", from, to)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.StdoutPipe()
	sandbox.Must(t, err)
	sandbox.Must(t, cmd.Start())
	end = sync.OnceFunc(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	t.Cleanup(end)
	said, err := bufio.NewReader(out).ReadString('\n')
	if said != "bound\n" {
		t.Fatalf("the bind failed: %q (%v)", said, err)
	}
	return end
}

// TestBoundElsewhere checks a detached device whose node is still bind-mounted in another mount
// namespace, for example by a container that has outlived its claim. The device must not serve
// another volume.
func TestBoundElsewhere(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := blockCap(writer)
	one, two := b.create("one", mib, image(""), c), b.create("two", mib, image(""), c)
	sandbox.Must(t, b.stage(one, c))
	sandbox.Must(t, b.publish(one, b.path("one"), c, false))
	was := b.loops(one)[0]
	end := bindElsewhere(t, b.path("one"), b.path("container"))
	sandbox.Must(t, b.unpublish(one, b.path("one")))
	sandbox.Must(t, b.unstage(one))
	sandbox.Must(t, b.stage(two, c))
	if now := b.loops(two)[0]; now.Name == was.Name {
		t.Errorf("volume two has %s, whose node a process in another mount namespace still has as volume one", now.Path())
	}
	end()
	b.clear(two)
	sandbox.Must(t, b.delete(one))
}
