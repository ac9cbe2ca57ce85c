package localdriver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func image(fsType string) map[string]string {
	m := map[string]string{store.ParamType: store.TypeImage}
	if fsType != "" {
		m[store.ParamFSType] = fsType
	}
	return m
}

func createReq(name string, size int64, params map[string]string, caps ...*csi.VolumeCapability) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, Parameters: params, VolumeCapabilities: caps,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}}
}

func TestIdentity(t *testing.T) {
	b := newBench(t)
	info, err := b.GetPluginInfo(background(), &csi.GetPluginInfoRequest{})
	sandbox.Must(t, err)
	if info.GetName() != DriverName || info.GetVendorVersion() != "test" {
		t.Errorf("got %v", info)
	}
	node, err := b.NodeGetInfo(background(), &csi.NodeGetInfoRequest{})
	sandbox.Must(t, err)
	if node.GetNodeId() != "node-1" {
		t.Errorf("got %v", node)
	}
}

// TestCreateRefused requests volumes that cannot be created. Each line of the table has a request
// and words that the error must contain.
func TestCreateRefused(t *testing.T) {
	b := newBench(t)
	fs, block := mountCap(writer, ""), blockCap(writer)
	ranged := func(required, limit int64, params map[string]string, c *csi.VolumeCapability) *csi.CreateVolumeRequest {
		r := createReq("v", required, params, c)
		r.CapacityRange.LimitBytes = limit
		return r
	}
	inv, oor := codes.InvalidArgument, codes.OutOfRange
	for _, c := range []struct {
		what string
		req  *csi.CreateVolumeRequest
		code codes.Code
		word string
	}{
		{"no name", createReq("", 0, nil, fs), inv, "name is empty"},
		{"129 bytes of name", createReq(strings.Repeat("x", 129), 0, nil, fs), inv, "128"},
		{"control character", createReq("a\nb", 0, nil, fs), inv, "control"},
		{"no capability", createReq("v", 0, nil), inv, "capabilities"},
		{"no access mode", createReq("v", 0, nil, mountCap(0, "")), inv, "access mode"},
		{"no access type", createReq("v", 0, nil, &csi.VolumeCapability{AccessMode: fs.GetAccessMode()}), inv, "neither"},
		{"multi-node", createReq("v", 0, nil, mountCap(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")), inv, "one node"},
		{"unknown parameter", createReq("v", 0, map[string]string{"flavour": "x"}, fs), inv, `"flavour"`},
		{"unknown type", createReq("v", 0, map[string]string{"type": "tape"}, fs), inv, `"tape"`},
		{"unknown fs_type", createReq("v", 0, image("ntfs"), fs), inv, `"ntfs"`},
		{"unknown fs_type in capability", createReq("v", 0, image(""), mountCap(writer, "ntfs")), inv, `"ntfs"`},
		{"directory as block", createReq("v", 0, nil, block), inv, "type: image"},
		{"directory with fs_type", createReq("v", 0, nil, mountCap(writer, "ext4")), inv, "type: image"},
		{"raw with fs_type", createReq("v", 0, image("xfs"), block), inv, "block"},
		{"two fs_types", createReq("v", 0, image("xfs"), mountCap(writer, "ext4")), inv, `"xfs" and "ext4"`},
		{"negative size", createReq("v", -1, nil, fs), inv, "negative"},
		{"limit below size", ranged(10, 5, nil, fs), oor, "limit_bytes"},
		{"small ext4", createReq("v", 15*mib, image("ext4"), fs), oor, "16 MiB"},
		{"small xfs", createReq("v", 299*mib, image("xfs"), fs), oor, "300 MiB"},
		{"small btrfs", createReq("v", 127*mib, image("btrfs"), fs), oor, "128 MiB"},
		{"small raw", createReq("v", 1, image(""), block), oor, "1 MiB"},
		{"limit below least", ranged(0, mib, image("ext4"), fs), oor, "16 MiB"},
		{"no multiple in range", ranged(20*mib+1, 20*mib+2, image("ext4"), fs), oor, "multiple"},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := b.CreateVolume(background(), c.req)
			sandbox.WantCode(t, err, c.code, c.word)
		})
	}
	if got := b.listed(); len(got) > 0 {
		t.Errorf("volumes were made: %v", got)
	}
	for _, d := range []string{store.DirTmp, store.DirTrash, store.DirVolumes} {
		if left, err := os.ReadDir(filepath.Join(b.state, d)); err != nil || len(left) > 0 {
			t.Errorf("%s holds %v (%v)", d, left, err)
		}
	}
}

func TestTooLarge(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	_, err := b.CreateVolume(background(), createReq("v", 1<<60, image("ext4"), mountCap(writer, "")))
	sandbox.WantCode(t, err, codes.OutOfRange, "does not fit")
}

func TestCreateTwice(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	fs := mountCap(writer, "")
	id := b.create("v", 20*mib, image("ext4"), fs)
	b.restart() // the driver must know the name of the volume after a restart
	if again := b.create("v", 20*mib, image(""), fs); again != id {
		t.Errorf("the same request made %q beside %q", again, id)
	}
	for what, req := range map[string]*csi.CreateVolumeRequest{
		"bigger":    createReq("v", 30*mib, image("ext4"), fs),
		"directory": createReq("v", 20*mib, asDirectory, fs),
		"btrfs":     createReq("v", 20*mib, image("btrfs"), fs),
		"and block": createReq("v", 20*mib, image("ext4"), fs, blockCap(writer)),
	} {
		_, err := b.CreateVolume(background(), req)
		if code := codes.AlreadyExists; err == nil || !strings.Contains(err.Error(), "exists with") {
			t.Errorf("%s: got %v, want %v", what, err, code)
		}
	}
	sandbox.Must(t, b.delete(id))
	if again := b.create("v", 0, nil, fs); again == id {
		t.Error("an id was used a second time")
	}
}

func TestList(t *testing.T) {
	b := newBench(t)
	var want []string
	for i := range 5 {
		want = append(want, b.create(fmt.Sprintf("v%d", i), 0, nil, mountCap(writer, "")))
	}
	slices.Sort(want)
	var got []string
	token := ""
	for {
		resp, err := b.ListVolumes(background(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		sandbox.Must(t, err)
		for _, e := range resp.GetEntries() {
			got = append(got, e.GetVolume().GetVolumeId())
		}
		// The token of a page must remain valid after the volume with this id is deleted.
		if token = resp.GetNextToken(); token == "" {
			break
		}
		sandbox.Must(t, b.delete(token))
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages gave %v, want %v", got, want)
	}
	_, err := b.ListVolumes(background(), &csi.ListVolumesRequest{StartingToken: "../x"})
	sandbox.WantCode(t, err, codes.Aborted)
	_, err = b.ListVolumes(background(), &csi.ListVolumesRequest{MaxEntries: -1})
	sandbox.WantCode(t, err, codes.InvalidArgument)
}

func TestGetAndValidate(t *testing.T) {
	b := newBench(t)
	fs := mountCap(writer, "")
	id := b.create("v", 4096, asDirectory, fs)
	got, err := b.ControllerGetVolume(background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	sandbox.Must(t, err)
	if got.GetVolume().GetCapacityBytes() != 4096 || !maps.Equal(got.GetVolume().GetVolumeContext(), map[string]string{"type": "directory"}) {
		t.Errorf("got %v", got)
	}
	validate := func(c *csi.VolumeCapability, params, context map[string]string) string {
		t.Helper()
		resp, err := b.ValidateVolumeCapabilities(background(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{c}, Parameters: params, VolumeContext: context})
		sandbox.Must(t, err)
		if (resp.GetConfirmed() == nil) == (resp.GetMessage() == "") {
			t.Errorf("neither or both of confirmed and a message: %v", resp)
		}
		return resp.GetMessage()
	}
	for _, c := range []struct {
		cap             *csi.VolumeCapability
		params, context map[string]string
		want            string
	}{
		{fs, nil, nil, ""},
		{mountCap(multiWriter, "", "ro"), map[string]string{"type": "directory"}, map[string]string{"type": "directory"}, ""},
		{blockCap(writer), nil, nil, "block"},
		{mountCap(writer, "ext4"), nil, nil, "ext4"},
		{mountCap(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""), nil, nil, "one node"},
		{fs, map[string]string{"type": "image"}, nil, "parameters"},
		{fs, map[string]string{"colour": "red"}, nil, "colour"},
		{fs, nil, map[string]string{"type": "image"}, "context"},
	} {
		if got := validate(c.cap, c.params, c.context); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v: got %q, want %q", c, got, c.want)
		}
	}
}

func TestCapacity(t *testing.T) {
	b := newBench(t)
	sandbox.Must(t, os.Mkdir(b.path("small"), 0o755))
	sandbox.Tmpfs(t, b.path("small"), "size=8m")
	t.Cleanup(func() { b.stop() }) // the driver must stop before the test unmounts its filesystem
	b.stop()
	b.state = b.path("small", "state")
	b.start()
	resp, err := b.GetCapacity(background(), &csi.GetCapacityRequest{Parameters: image("")})
	sandbox.Must(t, err)
	if got := resp.GetAvailableCapacity(); got < 7*mib || got > 8*mib || resp.GetMaximumVolumeSize().GetValue() != 8*mib {
		t.Errorf("got %v", resp)
	}
	raw := []*csi.VolumeCapability{blockCap(writer)}
	resp, err = b.GetCapacity(background(), &csi.GetCapacityRequest{VolumeCapabilities: raw})
	sandbox.Must(t, err)
	if resp.GetAvailableCapacity() == 0 {
		t.Errorf("a volume with a size is an image, which can be a block device, but got %v", resp)
	}
	resp, err = b.GetCapacity(background(), &csi.GetCapacityRequest{VolumeCapabilities: raw, Parameters: map[string]string{"type": "directory"}})
	sandbox.Must(t, err)
	if resp.GetAvailableCapacity() != 0 {
		t.Errorf("a directory cannot be a block device, but got %v", resp)
	}
	_, err = b.GetCapacity(background(), &csi.GetCapacityRequest{Parameters: map[string]string{"a": "b"}})
	sandbox.WantCode(t, err, codes.InvalidArgument)
}

func TestDiskFull(t *testing.T) {
	b := newBench(t)
	sandbox.Must(t, os.Mkdir(b.path("small"), 0o755))
	sandbox.Tmpfs(t, b.path("small"), "size=256k")
	t.Cleanup(func() { b.stop() }) // the driver must stop before the test unmounts its filesystem
	b.stop()
	b.state = b.path("small", "state")
	b.start()
	var err error
	made := 0
	for ; err == nil; made++ {
		_, err = b.CreateVolume(background(), createReq(fmt.Sprintf("v%d", made), 0, nil, mountCap(writer, "")))
	}
	sandbox.WantCode(t, err, codes.ResourceExhausted)
	made--
	if got := len(b.listed()); got != made || made == 0 {
		t.Errorf("%d were made, %d are listed", made, got)
	}
	b.restart()
	for _, id := range b.listed() {
		sandbox.Must(t, b.delete(id))
	}
	b.create("fits again", 0, nil, mountCap(writer, ""))
}

// TestHostileIDs sends ids that look like paths. The driver must not access a file because of such
// an id.
func TestHostileIDs(t *testing.T) {
	b := newBench(t)
	bait := b.path("bait")
	sandbox.Must(t, os.MkdirAll(filepath.Join(bait, store.DataDir), 0o755))
	sandbox.Write(t, filepath.Join(bait, store.DataDir, "f"), "precious")
	fs := mountCap(writer, "")
	for _, id := range []string{
		"../../bait", "..", ".", "/", b.path("bait"), "vol-/../../../bait", "vol-../../../bait", "vol-aaaaaaaaaaaaaaa/",
		"vol-AAAAAAAAAAAAAAAA", "vol-aaaaaaaaaaaaaaaa", "vol-aaaaaaaaaaaaaaa\x00", "x", strings.Repeat("a", 5000),
	} {
		sandbox.Must(t, b.delete(id)) // deleting an unknown volume must succeed, as CSI requires
		ctx, stg, tgt := background(), b.path("s"), b.path("t")
		_, e1 := b.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: stg, VolumeCapability: fs})
		_, e2 := b.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: stg})
		_, e3 := b.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: stg, TargetPath: tgt, VolumeCapability: fs})
		_, e4 := b.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: tgt})
		_, e5 := b.stats(id, tgt)
		_, e6 := b.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{fs}})
		_, e7 := b.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		for _, err := range []error{e1, e2, e3, e4, e5, e6, e7} {
			sandbox.WantCode(t, err, codes.NotFound)
		}
	}
	sandbox.WantContent(t, filepath.Join(bait, store.DataDir, "f"), "precious")
}

func TestMissingTool(t *testing.T) {
	sandbox.NeedLoops(t)
	old := imagefs.ToolDirs
	imagefs.ToolDirs = nil
	t.Cleanup(func() { imagefs.ToolDirs = old })
	t.Setenv("PATH", "/nonexistent")
	b := newBench(t)
	for _, f := range imagefs.Filesystems {
		_, err := b.CreateVolume(background(), createReq("v", 512*mib, image(f.Name), mountCap(writer, "")))
		sandbox.WantCode(t, err, codes.FailedPrecondition, f.Mkfs[0], f.Pkg)
	}
	if left, err := os.ReadDir(filepath.Join(b.state, store.DirTmp)); err != nil || len(left) > 0 {
		t.Errorf("tmp holds %v (%v)", left, err)
	}
}

func TestOneAtATime(t *testing.T) {
	st, err := store.Open(background(), filepath.Join(sandbox.ShortDir(t), "state"), nil)
	sandbox.Must(t, err)
	d := &driver{store: st}
	unlock, ok := d.locks.Try("vol-aaaaaaaaaaaaaaaa")
	if !ok {
		t.Fatal("a new lock is taken")
	}
	_, err = d.DeleteVolume(background(), &csi.DeleteVolumeRequest{VolumeId: "vol-aaaaaaaaaaaaaaaa"})
	sandbox.WantCode(t, csierr.ToStatus(err), codes.Aborted, "vol-aaaaaaaaaaaaaaaa")
	unlock()
	_, err = d.DeleteVolume(background(), &csi.DeleteVolumeRequest{VolumeId: "vol-aaaaaaaaaaaaaaaa"})
	sandbox.Must(t, errors.Join(err, st.Close()))
}
