package san

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func TestProvision(t *testing.T) {
	l := newLab(t)
	cfg := full
	cfg.Topology = map[string]string{"zone": "1"}
	a := l.host("a", cfg)
	cfg.Topology = map[string]string{"zone": "2"}
	b := l.host("b", cfg)
	create := func(bytes int64, source *csi.VolumeContentSource) (*csi.Volume, error) {
		name := "db"
		if source != nil {
			name = "copy"
		}
		resp, err := a.controller().CreateVolume(l.ctx(), &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
			VolumeCapabilities: []*csi.VolumeCapability{a.capability()}, VolumeContentSource: source,
			AccessibilityRequirements: &csi.TopologyRequirement{Preferred: []*csi.Topology{{Segments: map[string]string{"zone": "1"}}}}})
		return resp.GetVolume(), err
	}
	v, err := create(1<<20, nil)
	l.must(err)
	if again, err := create(1<<20, nil); err != nil || again.GetVolumeId() != v.GetVolumeId() {
		t.Errorf("again: %v, %v", again, err)
	}
	_, err = create(2<<20, nil)
	l.code(codes.AlreadyExists, err)
	publish := func(h *host) error {
		_, err := h.controller().ControllerPublishVolume(l.ctx(), &csi.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: h.name, VolumeCapability: h.capability()})
		return err
	}
	l.code(codes.InvalidArgument, publish(b))
	l.must(publish(a))
	_, err = a.controller().DeleteVolume(l.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	l.code(codes.FailedPrecondition, err)

	list, err := b.controller().ListVolumes(l.ctx(), &csi.ListVolumesRequest{MaxEntries: 1})
	l.must(err)
	if got := list.GetEntries()[0]; got.GetVolume().GetVolumeId() != "san-db" || !slices.Equal(got.GetStatus().GetPublishedNodeIds(), []string{"a"}) {
		t.Errorf("list: %v", list)
	}
	rest, err := b.controller().ListVolumes(l.ctx(), &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: list.GetNextToken()})
	if err != nil || len(rest.GetEntries()) != 1 || rest.GetNextToken() != "" || rest.GetEntries()[0].GetVolume().GetVolumeId() != "v" {
		t.Errorf("list: %v, %v", rest, err)
	}

	_, err = a.controller().ControllerUnpublishVolume(l.ctx(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: "a"})
	l.must(err)
	d := l.s.Disks()[0]
	l.must(os.WriteFile(d.Dir+"/file", []byte("data"), 0o600))
	snap, err := a.controller().CreateSnapshot(l.ctx(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.ID})
	l.must(err)
	id := snap.GetSnapshot().GetSnapshotId()
	_, err = create(2<<20, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}})
	l.must(err)
	raw, err := os.ReadFile(l.s.Disks()[0].Dir + "/file")
	if string(raw) != "data" || err != nil {
		t.Errorf("copy: %q, %v", raw, err)
	}
	_, err = a.controller().DeleteVolume(l.ctx(), &csi.DeleteVolumeRequest{VolumeId: d.ID})
	l.must(err)
	snaps, err := a.controller().ListSnapshots(l.ctx(), &csi.ListSnapshotsRequest{SnapshotId: id})
	if err != nil || len(snaps.GetEntries()) != 1 {
		t.Errorf("snapshots: %v, %v", snaps, err)
	}
	_, err = a.controller().DeleteSnapshot(l.ctx(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	l.must(err)
	if got := l.s.Disks(); len(got) != 2 || got[0].ID != "san-copy" || got[1].ID != "v" {
		t.Errorf("disks: %+v", got)
	}
	if _, err := os.Stat(d.Dir); !os.IsNotExist(err) {
		t.Errorf("the files of a deleted volume: %v", err)
	}
}

// TestExpand grows a volume. Each host learns the new size by its own call.
func TestExpand(t *testing.T) {
	for _, block := range []bool{false, true} {
		l := newLab(t)
		a := l.host("a", full)
		a.block = block
		a.up()
		grown, err := a.controller().ControllerExpandVolume(l.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * defaultSize}})
		if err != nil || grown.GetCapacityBytes() != 2*defaultSize || !grown.GetNodeExpansionRequired() {
			t.Errorf("grown: %v, %v", grown, err)
		}
		size := func() int64 {
			stats, err := a.node().NodeGetVolumeStats(l.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: a.target()})
			l.must(err)
			return stats.GetUsage()[0].GetTotal()
		}
		if got := size(); got != defaultSize || l.s.Sessions()[0].Size != defaultSize {
			t.Errorf("before NodeExpandVolume: %d", got)
		}
		_, err = a.node().NodeExpandVolume(l.ctx(), &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: a.target()})
		l.must(err)
		if got := size(); got != 2*defaultSize || l.s.Sessions()[0].Size != 2*defaultSize {
			t.Errorf("after NodeExpandVolume: %d", got)
		}
		a.down()
		l.unused()
	}
}

func TestCapabilities(t *testing.T) {
	l := newLab(t)
	a := l.host("a", Config{NodeOnly: true})
	if _, err := a.controller().ControllerGetCapabilities(l.ctx(), &csi.ControllerGetCapabilitiesRequest{}); err == nil {
		t.Error("a node-only driver has a controller")
	}
	b := l.host("b", Config{ControllerOnly: true, Attach: true, SingleNode: true})
	if _, err := b.node().NodeGetInfo(l.ctx(), &csi.NodeGetInfoRequest{}); err == nil {
		t.Error("a controller-only driver has a node service")
	}
	l.code(codes.NotFound, b.attach()) // is no node
	a.mode = allWriters
	l.code(codes.InvalidArgument, b.attachTo(l.ctx(), a, false))
	a.mode = oneWriter
	l.must(b.attachTo(l.ctx(), a, false))
	caps, err := b.controller().ControllerGetCapabilities(l.ctx(), &csi.ControllerGetCapabilitiesRequest{})
	l.must(err)
	var names []string
	for _, c := range caps.GetCapabilities() {
		names = append(names, c.GetRpc().GetType().String())
	}
	if got := strings.Join(names, " "); got != "PUBLISH_UNPUBLISH_VOLUME PUBLISH_READONLY" {
		t.Errorf("capabilities: %s", got)
	}
}

// TestServerProcess runs the SAN in a process of its own.
func TestServerProcess(t *testing.T) {
	dir := tempDir(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ServerEnvironment(dir+"/san")...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, dir: dir}
	l.eventually("the SAN answers", func() bool {
		_, err := ask(l.ctx(), SocketPath(dir+"/san"), request{Op: opHello, Node: "a"}, nil)
		return err == nil
	})
	ctx := l.ctx()
	_, err := ask(ctx, SocketPath(dir+"/san"), request{Op: opEnter, Node: "a", Method: "NodeStageVolume", Volume: "v"}, nil)
	l.must(err)
	events, err := ReadJournal(dir + "/san")
	if err != nil || len(events) != 2 || events[0].Kind != KindCall || events[0].Volume != "v" || events[1].Seq != 2 {
		t.Errorf("journal: %v, %v", events, err)
	}
	l.must(cmd.Process.Signal(unix.SIGTERM))
	l.must(cmd.Wait())
}

// TestDriverEndsWithSAN removes the directory of a SAN. The driver then ends.
func TestDriverEndsWithSAN(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	l.must(os.RemoveAll(l.dir + "/san"))
	if err := a.driver.Wait(); err != nil {
		t.Error(err)
	}
}

func TestPluginFile(t *testing.T) {
	raw, err := Config{Socket: "/s", Node: "a", NodeOnly: true}.PluginFile("p1", "/bin/x")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		ID, Type string
		Exec     struct {
			Command []string
			Env     map[string]string
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	c, err := decodeConfig(file.Exec.Env[envDriver])
	if err != nil || c.Node != "a" || c.Socket != "/s" || !c.NodeOnly || c.DriverName != "san.example.com" {
		t.Errorf("config: %+v, %v", c, err)
	}
	if file.ID != "p1" || file.Type != "node" || !slices.Equal(file.Exec.Command, []string{"/bin/x"}) {
		t.Errorf("plugin file: %s", raw)
	}
	if _, err := decodeConfig(`{"Unknown": 1}`); err == nil {
		t.Error("an unknown field is accepted")
	}
}
