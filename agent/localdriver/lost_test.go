package localdriver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func (b *bench) image(id string) string {
	return filepath.Join(b.state, store.DirVolumes, id, store.ImageFile)
}

// TestImageLost deletes, replaces or moves the image of a volume that is in use. The driver must
// still be able to unpublish and unstage the volume, and no device may stay attached.
func TestImageLost(t *testing.T) {
	sandbox.NeedLoops(t)
	fs, block := mountCap(writer, ""), blockCap(writer)
	lose := map[string]func(t *testing.T, image string){
		"deleted": func(t *testing.T, image string) { sandbox.Must(t, os.Remove(image)) },
		"replaced": func(t *testing.T, image string) {
			sandbox.Command(t, "cp", "--sparse=always", image, image+".copy")
			sandbox.Must(t, os.Rename(image+".copy", image))
		},
		"moved away": func(t *testing.T, image string) {
			sandbox.Must(t, os.Rename(image, image+".old"))
			sandbox.Command(t, "cp", "--sparse=always", image+".old", image)
		},
	}
	for fsType, size := range map[string]int64{"ext4": 16 * mib, "xfs": 300 * mib, "btrfs": 128 * mib, "": mib} {
		for how, lose := range lose {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s, restart %t", fsType, how, restart), func(t *testing.T) {
					b := newBench(t)
					c := fs
					if fsType == "" {
						c = block
					}
					id, target := b.create("v", size, image(fsType), c), b.path("t")
					sandbox.Must(t, b.stage(id, c))
					sandbox.Must(t, b.publish(id, target, c, false))
					lose(t, b.image(id))
					if restart {
						b.restart()
					}
					if fsType == "" {
						sandbox.WantCode(t, b.publish(id, target, c, false), codes.FailedPrecondition, "deleted or replaced")
					}
					sandbox.WantCode(t, b.delete(id), codes.FailedPrecondition, "attached")
					sandbox.Must(t, b.unpublish(id, target))
					sandbox.Must(t, b.unstage(id))
					if left := sandbox.LoopsUnder(b.state); len(left) > 0 {
						t.Errorf("still attached: %v", left)
					}
					if how == "deleted" {
						sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "missing")
						sandbox.Must(t, b.delete(id))
						return
					}
					sandbox.Must(t, b.stage(id, c))
					b.clear(id)
				})
			}
		}
	}
}

// TestTruncatedImage truncates an image. The driver must not use the truncated image as a
// filesystem or as a raw device.
func TestTruncatedImage(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	for name, c := range map[string]*csi.VolumeCapability{"raw": blockCap(writer), "ext4": mountCap(writer, "")} {
		id := b.create(name, 32*mib, image(""), c)
		sandbox.Must(t, os.Truncate(b.image(id), 20*mib))
		sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "20971520 bytes", "33554432", "a part of it is lost")
		sandbox.Must(t, os.Truncate(b.image(id), 32*mib))
		sandbox.Must(t, b.stage(id, c))
		if name == "raw" {
			sandbox.Must(t, os.Truncate(b.image(id), 20*mib))
			sandbox.WantCode(t, b.publish(id, b.path(name), c, false), codes.FailedPrecondition, "a part of it is lost")
		}
		b.clear(id)
	}
}

// TestOrphans starts the driver while loop devices are attached to images that belong to no volume.
func TestOrphans(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := blockCap(writer)
	known, unknown := b.create("known", mib, image(""), c), b.create("unknown", mib, image(""), c)
	sandbox.Must(t, b.stage(known, c))
	sandbox.Must(t, b.stage(unknown, c))
	dev := b.loops(unknown)[0]
	b.stop()
	sandbox.Must(t, os.Remove(b.image(known)))
	sandbox.Must(t, os.RemoveAll(filepath.Dir(b.image(unknown))))
	var said bytes.Buffer
	st, err := store.Open(background(), b.state, hclog.New(&hclog.LoggerOptions{Output: &said}))
	sandbox.Must(t, err)
	d := &driver{store: st, log: st.Log}
	sandbox.Must(t, d.takeOver())
	sandbox.Must(t, d.held.Close())
	sandbox.Must(t, st.Close())
	for _, want := range []string{unknown, dev.Name, known} {
		if !bytes.Contains(said.Bytes(), []byte(want)) {
			t.Errorf("it does not say %q:\n%s", want, said.String())
		}
	}
	detachBehind(t, dev)
	b.start()
	b.clear(known)
}

// TestBtrfsBetween requests sizes to which the kernel cannot resize a btrfs.
func TestBtrfsBetween(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := mountCap(writer, "")
	id, target := b.create("v", 128*mib, image("btrfs"), c), b.path("t")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	expand := func(required, limit int64) (int64, error) {
		resp, err := b.ControllerExpandVolume(background(), &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}})
		return resp.GetCapacityBytes(), err
	}
	nodeExpand := func() error {
		_, err := b.NodeExpandVolume(background(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target})
		return err
	}
	_, err := expand(200*mib, 220*mib)
	sandbox.WantCode(t, err, codes.OutOfRange, "256 MiB")
	// An older driver could leave a volume in the state that these steps make.
	sandbox.Must(t, b.unpublish(id, target))
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, os.Truncate(b.image(id), 200*mib))
	b.restart()
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	sandbox.Must(t, nodeExpand())
	if got, err := expand(210*mib, 0); err != nil || got != 256*mib {
		t.Errorf("expanded to %d (%v), want 256 MiB", got, err)
	}
	sandbox.Must(t, nodeExpand())
	resp, err := b.stats(id, target)
	sandbox.Must(t, err)
	if got := resp.GetUsage()[0].GetTotal(); got != 256*mib {
		t.Errorf("the filesystem has %d bytes, want 256 MiB", got)
	}
	b.clear(id, target)
	small := b.create("small", 128*mib, image("btrfs"), c)
	larger := copyReq("larger", fromVolume(small), c)
	larger.CapacityRange = &csi.CapacityRange{RequiredBytes: 150 * mib}
	dup, err := b.CreateVolume(background(), larger)
	sandbox.Must(t, err)
	if got := dup.GetVolume().GetCapacityBytes(); got != 256*mib {
		t.Errorf("the larger copy has %d bytes, want 256 MiB", got)
	}
	sandbox.Must(t, b.delete(dup.GetVolume().GetVolumeId()))
	sandbox.Must(t, b.delete(small))
}
