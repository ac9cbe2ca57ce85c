package localdriver

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

func TestBlock(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	one, many := blockCap(writer), blockCap(multiWriter)
	id := b.create("raw", 8*mib, image(""), one)
	sandbox.WantCode(t, b.stage(id, mountCap(writer, "")), codes.FailedPrecondition, "block access only")
	target, second := b.path("dev"), b.path("dev2")
	sandbox.WantCode(t, b.publish(id, target, one, false), codes.FailedPrecondition, "not staged")
	for range 2 {
		sandbox.Must(t, b.stage(id, one))
		sandbox.Must(t, b.publish(id, target, one, false))
	}
	if l := b.loops(id); len(l) != 1 || !l[0].Usable() {
		t.Fatalf("attached: %v", l)
	}
	wantNotMounted(t, b.staging(id))
	pattern := make([]byte, 4096)
	copy(pattern, "written through the device")
	f, err := os.OpenFile(target, os.O_RDWR, 0)
	sandbox.Must(t, err)
	_, err = f.WriteAt(pattern, 4*mib)
	sandbox.Must(t, err)
	sandbox.Must(t, f.Close())
	if ro, err := loopdev.BlockReadOnly(target); err != nil || ro {
		t.Fatalf("read-only is %t (%v)", ro, err)
	}
	resp, err := b.stats(id, target)
	sandbox.Must(t, err)
	if got := resp.GetUsage()[0].GetTotal(); got != 8*mib {
		t.Errorf("stats: %v", resp)
	}
	sandbox.WantCode(t, b.publish(id, second, one, false), codes.FailedPrecondition, target)
	sandbox.WantCode(t, b.publish(id, second, many, true), codes.FailedPrecondition, "cannot be both")
	sandbox.WantCode(t, b.publish(id, target, many, true), codes.AlreadyExists)
	sandbox.WantCode(t, b.unstage(id), codes.FailedPrecondition, target)
	sandbox.WantCode(t, b.publish(id, second, many, false), codes.FailedPrecondition, target, "one target")
	sandbox.Must(t, b.unpublish(id, target))
	sandbox.Must(t, b.publish(id, target, many, false))
	sandbox.Must(t, b.publish(id, second, many, false))
	sandbox.Must(t, b.unpublish(id, second))
	sandbox.Must(t, b.unpublish(id, target))
	sandbox.WantGone(t, target)

	readOnlyBlock(t, b, id, target, pattern)
	b.clear(id)
}

func readOnlyBlock(t *testing.T, b *bench, id, target string, pattern []byte) {
	t.Helper()
	second := b.path("dev2")
	for range 2 {
		sandbox.Must(t, b.publish(id, target, blockCap(multiWriter), true))
	}
	sandbox.Must(t, b.publish(id, second, blockCap(multiWriter), true))
	if ro, err := loopdev.BlockReadOnly(target); err != nil || !ro {
		t.Fatalf("read-only is %t (%v)", ro, err)
	}
	fd, err := unix.Open(target, unix.O_RDONLY, 0)
	sandbox.Must(t, err)
	got := make([]byte, len(pattern))
	_, err = unix.Pread(fd, got, 4*mib)
	sandbox.Must(t, err)
	sandbox.Must(t, unix.Close(fd))
	if string(got) != string(pattern) {
		t.Error("the read-only device shows other data than was written")
	}
	if fd, err := unix.Open(target, unix.O_WRONLY, 0); err == nil {
		_, err = unix.Pwrite(fd, pattern, 0)
		if err == nil {
			t.Error("the read-only device took a write")
		}
		sandbox.Must(t, unix.Close(fd))
	}
	sandbox.WantCode(t, b.publish(id, b.path("rw"), blockCap(multiWriter), false), codes.FailedPrecondition, "cannot be both")
	sandbox.Must(t, b.unpublish(id, second))
	if l := b.loops(id); len(l) != 2 {
		t.Errorf("attached: %v; one target still needs the read-only device", l)
	}
	sandbox.Must(t, b.unpublish(id, target))
	if l := b.loops(id); len(l) != 1 || l[0].ReadOnly {
		t.Errorf("attached: %v; want the writable device alone", l)
	}
}

func TestBothAccessTypes(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	fs, block := mountCap(writer, ""), blockCap(writer)
	id := b.create("both", 16*mib, image("ext4"), fs, block)
	target := b.path("t")
	sandbox.Must(t, b.stage(id, fs))
	sandbox.WantCode(t, b.stage(id, block), codes.AlreadyExists)
	sandbox.WantCode(t, b.publish(id, target, block, false), codes.FailedPrecondition, "mounted")
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, b.stage(id, block))
	sandbox.Must(t, b.publish(id, target, block, false))
	sandbox.WantCode(t, b.stage(id, fs), codes.FailedPrecondition, target)
	b.clear(id, target)
}

// TestOpenDevice keeps a raw device open after its volume is unpublished. The driver cannot detach
// an open device, so unstaging must fail.
func TestOpenDevice(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := blockCap(writer)
	id := b.create("raw", mib, image(""), c)
	sandbox.Must(t, b.stage(id, c))
	dev := b.loops(id)[0]
	f, err := os.Open(dev.Path())
	sandbox.Must(t, err)
	sandbox.WantCode(t, b.unstage(id), codes.Internal, dev.Path(), "still open")
	sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, dev.Path())
	sandbox.Must(t, f.Close())
	sandbox.Await(t, "the device is free", func() bool { return len(b.loops(id)) == 0 })
	b.clear(id)
}
