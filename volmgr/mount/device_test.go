package mount

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

func TestDevices(t *testing.T) {
	dir := tempDir(t)
	ctx := context.Background()
	ext4 := loop(t, dir, 8<<20, "mkfs.ext4", "-q")
	raw := loop(t, dir, 1<<20)
	at := func(name string) string { return mkdir(t, dir, name) }
	mountFS(t, "ext4", ext4, at("ext4"), 0, "")
	bindAt(t, mkdir(t, dir, "ext4/sub"), at("bind"))
	mountFS(t, "tmpfs", "tmpfs", at("tmpfs"), 0, "")
	// The type tmpfs ignores the source that is given to the mount.
	mountFS(t, "tmpfs", raw, at("named"), 0, "")
	bindAt(t, raw, write(t, dir+"/node", ""))
	check(t, os.Symlink(raw, dir+"/link"))
	serveFuse(t, at("dead"), false).die()
	for path, want := range map[string][]string{
		"ext4":       {number(t, ext4)},
		"bind":       {number(t, ext4)},
		"ext4/sub":   nil, // Devices does not search the parents of a path that is not a mount point
		"plain":      nil,
		"none":       nil,
		"none/none":  nil,
		"tmpfs":      nil,
		"dead":       nil,
		"named":      {number(t, raw)},
		"node":       {number(t, raw)},
		"link":       {number(t, raw)},
		"ext4/plain": nil,
	} {
		if strings.HasSuffix(path, "plain") {
			at(path)
		}
		now, old, older := hosts(t)
		for _, h := range []*Host{now, old, older} {
			got, err := h.Devices(ctx, filepath.Join(dir, path))
			if err != nil || !slices.Equal(numbersOf(got), want) {
				t.Errorf("%s: %v, %v; want %v", path, got, err, want)
			}
		}
	}
}

// numbersOf returns the device numbers of devs.
func numbersOf(devs []volume.Device) (numbers []string) {
	for _, d := range devs {
		numbers = append(numbers, d.Number)
	}
	return numbers
}

// TestDeviceReplaced detaches a loop device, and then attaches and mounts another file under the
// same device number. For the recorded device with its disk sequence number, DeviceUsers must
// return no users. For the device number alone, it must return a user.
func TestDeviceReplaced(t *testing.T) {
	dir := tempDir(t)
	h, ctx := newHost(t), context.Background()
	node, at := loop(t, dir, 8<<20, "mkfs.ext4", "-q"), mkdir(t, dir, "m")
	image := loopsIn(dir)[node]
	mountFS(t, "ext4", node, at, 0, "")
	devs, err := h.Devices(ctx, at)
	check(t, err)
	if len(devs) != 1 || devs[0].Disk == 0 {
		t.Fatalf("got %v", devs)
	}
	was := devs[0]
	if users, err := h.DeviceUsers(ctx, was); err != nil || len(users) != 1 || h.Replaced(was) {
		t.Errorf("while it is mounted: used by %q, %v", users, err)
	}
	check(t, unix.Unmount(at, 0))
	run(t, "losetup", "-d", node)
	await(t, "loop device to go", func() bool { return loopsIn(dir)[node] == "" })
	run(t, "losetup", node, image)
	mountFS(t, "ext4", node, at, 0, "")
	if users, err := h.DeviceUsers(ctx, was); err != nil || len(users) != 0 || !h.Replaced(was) {
		t.Errorf("once it is replaced: used by %q, %v", users, err)
	}
	// An earlier release of the agent recorded only the device number.
	unknown := numbered(was.Number)
	if users, err := h.DeviceUsers(ctx, unknown); err != nil || len(users) != 1 {
		t.Errorf("by its number: used by %q, %v", users, err)
	}
}

// TestDiskSequence checks the sequence numbers of disks and partitions. A device of the device
// mapper must have none.
func TestDiskSequence(t *testing.T) {
	h := newHost(t)
	sys := t.TempDir()
	h.sysfs = sysfs(sys)
	disk := mkdir(t, sys, "devices/sda")
	write(t, disk+"/diskseq", "12\n")
	write(t, mkdir(t, disk, "sda1")+"/partition", "1\n")
	mapped := mkdir(t, sys, "devices/dm-0")
	write(t, mapped+"/diskseq", "13\n")
	write(t, mapped+"/uevent", "DEVNAME=dm-0\n")
	write(t, mkdir(t, sys, "devices/odd")+"/diskseq", "x\n")
	links := mkdir(t, sys, "dev/block")
	for number, name := range map[string]string{"8:0": "sda", "8:1": "sda/sda1", "253:0": "dm-0", "1:1": "odd"} {
		check(t, os.Symlink("../../devices/"+name, links+"/"+number))
	}
	for number, want := range map[string]uint64{"8:0": 12, "8:1": 12, "253:0": 0, "1:1": 0, "9:9": 0} {
		if got := h.diskSequence(number); got != want {
			t.Errorf("%s: %d, want %d", number, got, want)
		}
	}
}

// TestLoopNode bind-mounts the node of a loop device. It looks at the mount while the device is
// detached, and again after the device is attached to another file.
func TestLoopNode(t *testing.T) {
	dir := tempDir(t)
	node, dev := dir+"/node", loop(t, dir, 1<<20)
	bindAt(t, dev, write(t, node, ""))
	image := loopsIn(dir)[dev]
	now, old, older := hosts(t)
	for _, h := range []*Host{now, old, older} {
		if s := h.Look(t.Context(), node); s.Seen != volume.SeenMount || s.Identity.Backing != image {
			t.Errorf("attached: %+v, want %s behind it", s, image)
		}
	}
	if got := now.Loops()[number(t, dev)]; got.Backing != image || "/dev/"+got.Name != dev {
		t.Errorf("among all loop devices it is %+v", got)
	}
	made := now.Look(t.Context(), node).Identity
	run(t, "losetup", "-d", dev)
	await(t, "loop device to go", func() bool { return loopsIn(dir)[dev] == "" })
	for _, h := range []*Host{now, old, older} {
		if s := h.Look(t.Context(), node); s.Seen != volume.SeenDead {
			t.Errorf("detached: %+v", s)
		}
	}
	other := write(t, dir+"/other", strings.Repeat("x", 4096))
	run(t, "losetup", dev, other)
	s := now.Look(t.Context(), node)
	if s.Seen != volume.SeenMount || s.Identity.Backing != other || s.Is(&made) {
		t.Errorf("another file: %+v", s)
	}
	made.Backing = "" // an earlier release of the agent did not record this field
	if !s.Is(&made) {
		t.Error("a record without a backing file matches no more")
	}
}

func TestDevicesOfBtrfs(t *testing.T) {
	dir := tempDir(t)
	ctx := context.Background()
	one := loop(t, dir, 128<<20, "mkfs.btrfs", "-q")
	two := loop(t, dir, 128<<20)
	at := mkdir(t, dir, "m")
	mountFS(t, "btrfs", one, at, 0, "")
	run(t, "btrfs", "device", "add", two, at)
	want := []string{number(t, one), number(t, two)}
	slices.Sort(want)
	now, old, older := hosts(t)
	for _, h := range []*Host{now, old, older} {
		if got, err := h.Devices(ctx, at); err != nil || !slices.Equal(numbersOf(got), want) {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	}
	users, err := now.DeviceUsers(ctx, numbered(number(t, one)))
	if err != nil || !slices.Equal(users, []string{fmt.Sprintf("mounted at %q", at)}) {
		t.Errorf("users of the named device: %q, %v", users, err)
	}
	users, err = now.DeviceUsers(ctx, numbered(number(t, two)))
	if err != nil || len(users) != 1 {
		t.Errorf("users of the other: %q, %v", users, err)
	}
	check(t, now.Unmount(ctx, at, Plain))
	for _, dev := range want {
		unused(t, dev)
	}
}

// numbered returns a device whose disk sequence number is unknown.
func numbered(number string) volume.Device { return volume.Device{Number: number} }

// unused fails the test unless DeviceUsers proves that the device is unused.
func unused(t *testing.T, dev string) {
	t.Helper()
	if users, err := newHost(t).DeviceUsers(context.Background(), numbered(dev)); err != nil || len(users) > 0 {
		t.Errorf("device %s: used by %q, %v", dev, users, err)
	}
}

func TestDeviceUsers(t *testing.T) {
	dir := tempDir(t)
	h, ctx := newHost(t), context.Background()
	node := loop(t, dir, 8<<20, "mkfs.ext4", "-q")
	dev, at := number(t, node), mkdir(t, dir, "m n")
	start(t, "zombie", nil) // a zombie process uses no device
	uses := func(want ...string) {
		t.Helper()
		users, err := h.DeviceUsers(ctx, numbered(dev))
		if err != nil || !slices.Equal(users, want) {
			t.Errorf("used by %q, %v; want %q", users, err, want)
		}
	}
	uses()

	mountFS(t, "ext4", node, at, 0, "")
	uses(fmt.Sprintf("mounted at %q", at))
	bindAt(t, at, mkdir(t, dir, "b"))
	uses(fmt.Sprintf("mounted at %q", at), fmt.Sprintf("mounted at %q", dir+"/b"))
	check(t, unix.Unmount(dir+"/b", 0))

	// After an unmount in this namespace, the mount can still exist in another namespace. The other
	// namespace can belong to a process or to a single thread.
	unshared := func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} }
	for what, change := range map[string]func(*exec.Cmd){"stay": unshared, "thread": nil} {
		pid, stop := start(t, what, change)
		check(t, unix.Unmount(at, 0))
		uses(fmt.Sprintf("mounted at %q in the mount namespace of process %d (exe)", at, pid))
		stop()
		await(t, "the namespace to go", func() bool { users, err := h.DeviceUsers(ctx, numbered(dev)); return err == nil && len(users) == 0 })
		mountFS(t, "ext4", node, at, 0, "")
	}

	// After a lazy unmount, an open file keeps the device in use, although no mount table contains
	// the mount.
	f, err := os.Create(at + "/file")
	check(t, err)
	check(t, h.Unmount(ctx, at, Lazy))
	users, err := h.DeviceUsers(ctx, numbered(dev))
	if err != nil || len(users) != 1 || !strings.HasPrefix(users[0], "device is busy") {
		t.Errorf("used by %q, %v", users, err)
	}
	check(t, f.Close())
	await(t, "the lazy unmount to end", func() bool { users, err := h.DeviceUsers(ctx, numbered(dev)); return err == nil && len(users) == 0 })

	for _, what := range []string{"open", "exclusive"} {
		pid, stop := start(t, what+" "+node, nil)
		uses(fmt.Sprintf("open in process %d (exe)", pid))
		stop()
	}
	uses()
}

func TestDeviceUsersKnowsItsLimits(t *testing.T) {
	dir := tempDir(t)
	ctx := context.Background()
	node := loop(t, dir, 1<<20)
	dev := number(t, node)
	unused(t, dev)
	unused(t, "4095:1") // there is no such device
	// If there is no block device, DeviceUsers can give an answer only if the agent may inspect
	// every process.
	_, closed, err := newHost(t).spaces()
	check(t, err)
	if users, err := newHost(t).DeviceUsers(ctx, numbered("0:12345")); (err == nil) != (len(closed) == 0) || len(users) > 0 {
		t.Errorf("no device, %d processes closed: %q, %v", len(closed), users, err)
	}
	for _, bad := range []string{"", "7", "7:", "7:x", "sda", "7:1:2", "../7:1", "07:1"} {
		if users, err := newHost(t).DeviceUsers(ctx, numbered(bad)); err == nil {
			t.Errorf("%q: %q", bad, users)
		}
	}
	h := newHost(t)
	sys := mkdir(t, dir, "sys")
	h.sysfs = sysfs(sys) // without sysfs the agent cannot know whether the device exists
	if users, err := h.DeviceUsers(ctx, numbered(dev)); err == nil {
		t.Errorf("without sysfs: %q", users)
	}
	uevent := mkdir(t, sys, "dev/block", dev) + "/uevent"
	other := strings.TrimPrefix(loop(t, dir, 1<<20), "/dev/")
	// None of these names is the name of the device's node.
	for _, name := range []string{"none", "null", other} {
		write(t, uevent, "MAJOR=7\nDEVNAME="+name+"\n")
		if users, err := h.DeviceUsers(ctx, numbered(dev)); err == nil {
			t.Errorf("with the wrong node %q: %q", name, users)
		}
	}
	// The device is still mounted although sysfs no longer shows it.
	at := mkdir(t, dir, "m")
	mountFS(t, "ext4", loop(t, dir, 8<<20, "mkfs.ext4", "-q"), at, 0, "")
	devs, err := newHost(t).Devices(ctx, at)
	check(t, err)
	check(t, os.Remove(uevent))
	users, err := h.DeviceUsers(ctx, devs[0])
	if err != nil || !slices.Equal(users, []string{fmt.Sprintf("mounted at %q", at)}) {
		t.Errorf("gone but mounted: %q, %v", users, err)
	}
}

func TestBlockReadOnly(t *testing.T) {
	dir := tempDir(t)
	h, ctx := newHost(t), context.Background()
	node := loop(t, dir, 1<<20)
	at := write(t, dir+"/node", "")
	bindAt(t, node, at)
	for _, ro := range []bool{false, true, false} {
		run(t, "blockdev", map[bool]string{true: "--setro", false: "--setrw"}[ro], node)
		if got, err := h.BlockReadOnly(ctx, at); err != nil || got != ro {
			t.Errorf("got %v, %v; want %v", got, err, ro)
		}
	}
	check(t, h.MakeReadOnly(ctx, at))
	if got, err := h.BlockReadOnly(ctx, at); err != nil || got {
		t.Errorf("a read-only mount of the node counts: %v, %v", got, err)
	}
	for _, path := range []string{dir, dir + "/none", "/dev/null"} {
		if got, err := h.BlockReadOnly(ctx, path); err == nil {
			t.Errorf("%q: %v", path, got)
		}
	}
}
