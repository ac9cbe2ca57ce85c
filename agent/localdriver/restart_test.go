package localdriver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// TestRestart stops the driver while volumes are in use, and starts another driver. Afterwards the
// mounts must be the same, and a process must be able to continue writing to an open file. Every
// repeated call must succeed and change nothing.
func TestRestart(t *testing.T) {
	b := newBench(t)
	type one struct {
		id, target string
		cap        *csi.VolumeCapability
		readOnly   bool
	}
	fs := mountCap(writer, "")
	all := []one{{b.create("d", 0, nil, fs), b.path("d"), fs, false}}
	if !sandbox.InUserNamespace(t) {
		many := blockCap(multiWriter)
		all = append(all,
			one{b.create("i", 16*mib, image(""), fs), b.path("i"), fs, true},
			one{b.create("x", 300*mib, image("xfs"), fs), b.path("x"), fs, false},
			one{b.create("b", 128*mib, image("btrfs"), fs), b.path("b"), fs, false},
			one{b.create("r", mib, image(""), many), b.path("r"), many, false},
			one{b.create("ro", mib, image(""), many), b.path("ro"), many, true})
	}
	mounts := map[string]uint64{}
	for _, v := range all {
		sandbox.Must(t, b.stage(v.id, v.cap))
		sandbox.Must(t, b.publish(v.id, v.target, v.cap, v.readOnly))
		mounts[v.target] = mountID(t, v.target)
	}
	f, err := os.Create(filepath.Join(all[0].target, "log"))
	sandbox.Must(t, err)
	_, err = f.WriteString("before ")
	sandbox.Must(t, err)
	b.restart()
	_, err = f.WriteString("after")
	sandbox.Must(t, err)
	sandbox.Must(t, f.Close())
	sandbox.WantContent(t, filepath.Join(all[0].target, "log"), "before after")
	for _, v := range all {
		sandbox.WantCode(t, b.publish(v.id, b.path("second"), oneTarget(v.cap), v.readOnly), codes.FailedPrecondition, v.target)
		attached := len(sandbox.LoopsUnder(filepath.Join(b.state, store.DirVolumes, v.id)))
		sandbox.Must(t, b.stage(v.id, v.cap))
		sandbox.Must(t, b.publish(v.id, v.target, v.cap, v.readOnly))
		if got := mountID(t, v.target); got != mounts[v.target] {
			t.Errorf("%s is another mount than before", v.target)
		}
		if got := len(sandbox.LoopsUnder(filepath.Join(b.state, store.DirVolumes, v.id))); got != attached {
			t.Errorf("volume %s has %d devices, before %d", v.id, got, attached)
		}
		b.clear(v.id, v.target)
	}
}

// oneTarget returns a copy of the capability with an access mode that allows only one target.
func oneTarget(c *csi.VolumeCapability) *csi.VolumeCapability {
	if c.GetBlock() != nil {
		return blockCap(writer)
	}
	return mountCap(writer, "")
}

// TestStagingLost unmounts the staging path of a volume without the driver's knowledge, while a
// target is in use.
func TestStagingLost(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("i", 16*mib, image(""), c)
	target := b.path("t")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	f, err := os.Create(filepath.Join(target, "f"))
	sandbox.Must(t, err)
	sandbox.Must(t, exec.Command("umount", b.staging(id)).Run())
	sandbox.Must(t, b.stage(id, c))
	_, err = f.WriteString("goes on")
	sandbox.Must(t, err)
	sandbox.Must(t, f.Close())
	sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), "goes on")
	b.clear(id, target)
}
