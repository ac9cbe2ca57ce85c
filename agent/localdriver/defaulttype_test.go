package localdriver

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

var asDirectory = map[string]string{store.ParamType: store.TypeDirectory}

// TestSizeIsAPromise creates volumes with a size but no type, on a filesystem that enforces no
// quotas.
func TestSizeIsAPromise(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	if loopdev.CheckLoopControl() != nil {
		_, err := b.CreateVolume(background(), createReq("v", 32*mib, nil, c))
		sandbox.WantCode(t, err, codes.FailedPrecondition, loopdev.LoopControl, "--param type=directory")
		sandbox.Must(t, b.delete(b.create("v", 32*mib, asDirectory, c)))
		return
	}
	id := b.create("v", 32*mib, nil, c)
	if v := b.recorded(id); v.Type != store.TypeImage || v.FSType != "ext4" || v.Capacity != 32*mib {
		t.Errorf("it is %+v, want an image", v)
	}
	sandbox.Must(t, b.stage(id, c))
	if err := os.WriteFile(filepath.Join(b.staging(id), "f"), make([]byte, 40*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("40 MiB in a volume of 32 MiB: %v", err)
	}
	b.clear(id)

	if v := b.recorded(b.create("no size", 0, nil, c)); v.Type != store.TypeDirectory {
		t.Errorf("without a size it is %+v", v)
	}
	if v := b.recorded(b.create("raw", mib, nil, blockCap(writer))); v.Type != store.TypeImage || v.FSType != "" {
		t.Errorf("for block access it is %+v", v)
	}
	_, err := b.CreateVolume(background(), createReq("small", 4096, nil, c))
	sandbox.WantCode(t, err, codes.OutOfRange, "16 MiB", "--param type=directory")
	_, err = b.CreateVolume(background(), createReq("small", 4096, image(""), c))
	sandbox.WantCode(t, err, codes.OutOfRange, "16 MiB")
}

// TestTypeLeftOut requests existing volumes again, and requests copies, without naming a type. The
// result must have the type of the existing volume or of the source.
func TestTypeLeftOut(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	kinds := map[string]map[string]string{"directory": asDirectory}
	if loopdev.CheckLoopControl() == nil {
		kinds["ext4"], kinds["xfs"] = image("ext4"), image("xfs")
	}
	for name, params := range kinds {
		id := b.create(name, 300*mib, params, c)
		if again := b.create(name, 300*mib, nil, c); again != id {
			t.Errorf("%s: asked again without a type: %q, before %q", name, again, id)
		}
		_, err := b.CreateVolume(background(), createReq(name, 300*mib, nil, blockCap(writer)))
		sandbox.WantCode(t, err, codes.AlreadyExists, "exists with")
		larger := copyReq(name+" copy", fromVolume(id), c)
		larger.CapacityRange = &csi.CapacityRange{RequiredBytes: 400 * mib}
		dup, err := b.CreateVolume(background(), larger)
		sandbox.Must(t, err)
		if got, want := dup.GetVolume().GetVolumeContext(), b.recorded(id).Context(); !maps.Equal(got, want) {
			t.Errorf("%s: the copy is %v, its source %v", name, got, want)
		}
	}
}

// TestSizeIsAQuota creates a volume with a size but no type, on a filesystem that enforces quotas.
func TestSizeIsAQuota(t *testing.T) {
	f := newFakeProjects()
	dir := sandbox.ShortDir(t)
	b := startBench(t, &bench{t: t, dir: dir, state: filepath.Join(dir, "state"), projects: f})
	c := mountCap(writer, "")
	id := b.create("v", 5000, nil, c)
	v := b.recorded(id)
	if v.Type != store.TypeDirectory || v.Capacity != 5000 || v.Quota != 5120 {
		t.Fatalf("it is %+v, want a directory with a quota", v)
	}
	limit := func(want int64) {
		t.Helper()
		if got, _ := f.state(b.recorded(id).Project); got != want {
			t.Errorf("the limit is %d bytes, want %d", got, want)
		}
	}
	context := v.Context()
	if context[store.ContextSize] != store.SizeEnforced {
		t.Errorf("the context is %v", context)
	}
	limit(5120)
	for range 2 {
		_, err := b.expand(id, 9000)
		sandbox.Must(t, err)
		limit(9216)
	}
	sandbox.Must(t, b.modify(id, quota("none")))
	_, err := b.expand(id, 20000)
	sandbox.Must(t, err)
	limit(0)
	resp, err := b.ValidateVolumeCapabilities(background(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{c}, VolumeContext: context})
	sandbox.Must(t, err)
	if resp.GetConfirmed() == nil || b.recorded(id).Context()[store.ContextSize] != "" {
		t.Errorf("with another quota: %v, %v", resp, b.recorded(id).Context())
	}
	if v := b.recorded(b.create("explicit", 5000, asDirectory, c)); v.Quota != 5120 && v.Quota != 0 {
		t.Errorf("with its type given it is %+v", v)
	}
}
