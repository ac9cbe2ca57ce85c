package localdriver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// TestDamagedImage wipes the start of a filesystem. Staging must fail, and must not format the
// image.
func TestDamagedImage(t *testing.T) {
	sandbox.NeedLoops(t)
	for _, f := range imagefs.Filesystems {
		b := newBench(t)
		c := mountCap(writer, f.Name)
		id := b.create("v", f.MinSize, image(f.Name), c)
		img, err := os.OpenFile(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile), os.O_RDWR, 0)
		sandbox.Must(t, err)
		_, err = img.WriteAt(make([]byte, mib), 0)
		sandbox.Must(t, err)
		if err := b.stage(id, c); err == nil {
			t.Errorf("%s: a wiped filesystem was staged", f.Name)
		}
		got := make([]byte, mib)
		_, err = img.ReadAt(got, 0)
		sandbox.Must(t, err)
		for _, x := range got {
			if x != 0 {
				t.Fatalf("%s: the image was written to", f.Name)
			}
		}
		sandbox.Must(t, img.Close())
		b.clear(id)
	}
}

// TestUncleanImage simulates a power loss while an ext4 is mounted, and mounts the filesystem
// again.
func TestUncleanImage(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := mountCap(writer, "ext4")
	id := b.create("v", 32*mib, image("ext4"), c)
	sandbox.Must(t, b.stage(id, c))
	f, err := os.Create(filepath.Join(b.staging(id), "f"))
	sandbox.Must(t, err)
	_, err = f.WriteString("synced")
	sandbox.Must(t, errors.Join(err, f.Sync()))
	const ext4Shutdown = 0x8004587d
	sandbox.Must(t, unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, 2))
	sandbox.Must(t, f.Close())
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, b.stage(id, c))
	sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), "synced")
	b.clear(id)
}

// TestFilesystemCheck first marks an ext4 as having errors. Staging must repair this ext4. The test
// then damages the filesystem so badly that an automatic repair is not safe, and staging must fail.
func TestFilesystemCheck(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := mountCap(writer, "ext4")
	id := b.create("v", 32*mib, image("ext4"), c)
	img := filepath.Join(b.state, store.DirVolumes, id, store.ImageFile)
	debugfs := func(command string) {
		t.Helper()
		if out, err := exec.Command("debugfs", "-w", "-R", command, img).CombinedOutput(); err != nil {
			t.Fatalf("debugfs %s: %v: %s", command, err, out)
		}
	}
	state := func() string {
		t.Helper()
		out, err := exec.Command("dumpe2fs", "-h", img).Output()
		sandbox.Must(t, err)
		_, state, _ := strings.Cut(string(out), "Filesystem state:")
		state, _, _ = strings.Cut(state, "\n")
		return strings.TrimSpace(state)
	}
	debugfs("ssv state 2")
	if got := state(); !strings.Contains(got, "errors") {
		t.Fatalf("the state is %q before the check", got)
	}
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.unstage(id))
	if got := state(); got != "clean" {
		t.Errorf("the state is %q after the check", got)
	}
	debugfs("ssv state 2")
	debugfs("clri <2>")
	sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "repair by hand", "e2fsck")
	if l := b.loops(id); len(l) > 0 {
		t.Errorf("a failed stage left %v", l)
	}
	b.clear(id)
}
