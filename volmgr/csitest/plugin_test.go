package csitest

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// TestLifeOfAVolume takes a volume through all calls. It checks that the mounts are real, that no
// mount remains, and that the journal is complete. For a caller that obeys the rules, the plugin
// must report no violation.
func TestLifeOfAVolume(t *testing.T) {
	b := start(t, full)
	made, err := csi.NewControllerClient(b.conn).CreateVolume(b.ctx(), &csi.CreateVolumeRequest{Name: "data", VolumeCapabilities: []*csi.VolumeCapability{writer()}})
	b.must(err)
	v, vc := made.Volume.VolumeId, made.Volume.VolumeContext
	_, err = csi.NewControllerClient(b.conn).ControllerPublishVolume(b.ctx(),
		&csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "node-1", VolumeCapability: writer(), VolumeContext: vc, Readonly: true})
	b.must(err)

	b.must(os.Mkdir(b.staging(v), 0o711))
	st := b.stageRequest(v)
	st.VolumeContext, st.Secrets = vc, map[string]string{"key": "s3cret"}
	nodes := csi.NewNodeClient(b.conn)
	_, err = nodes.NodeStageVolume(b.ctx(), st)
	b.must(err)
	rw, ro := b.publishRequest(v, "rw"), b.publishRequest(v, "ro")
	rw.VolumeContext, ro.VolumeContext, ro.Readonly = vc, vc, true
	for _, r := range []*csi.NodePublishVolumeRequest{rw, ro, ro} {
		_, err = nodes.NodePublishVolume(b.ctx(), r)
		b.must(err)
	}
	b.must(os.WriteFile(b.target("rw/file"), []byte("hello"), 0o600))
	if got, err := os.ReadFile(b.target("ro/file")); err != nil || string(got) != "hello" {
		t.Errorf("read-only target: %q, %v", got, err)
	}
	if err := os.WriteFile(b.target("ro/file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to the read-only target: %v", err)
	}
	stats, err := nodes.NodeGetVolumeStats(b.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v, VolumePath: b.target("rw"), StagingTargetPath: b.staging(v)})
	if err != nil || len(stats.Usage) != 2 || stats.Usage[0].Total == 0 {
		t.Errorf("stats: %v, %v", stats, err)
	}

	for _, target := range []string{"ro", "rw", "rw"} {
		b.must(b.unpublish(v, target))
		if _, err := os.Lstat(b.target(target)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("target %s is left: %v", target, err)
		}
	}
	b.must(b.unstage(v))
	if isMount(b.staging(v)) {
		t.Error("the staging path is still mounted")
	}
	b.must(b.detach(v))
	_, err = csi.NewControllerClient(b.conn).DeleteVolume(b.ctx(), &csi.DeleteVolumeRequest{VolumeId: v})
	b.must(err)

	b.noViolations()
	want := []string{CreateVolume, ControllerPublish, NodeStage, NodePublish, NodePublish, NodePublish, NodeStats,
		NodeUnpublish, NodeUnpublish, NodeUnpublish, NodeUnstage, ControllerUnpublish, DeleteVolume}
	j := b.journal()
	if got := j.Calls.Methods(); !slices.Equal(got, want) {
		t.Errorf("calls:\n%s", j.Calls)
	}
	if got := j.Calls.Mutating(); len(got) != len(want)-1 || got.Count(NodeStats) != 0 {
		t.Errorf("mutating calls:\n%s", got)
	}
	if c := j.Calls[5]; c.Seq != 6 || !c.ReadOnly || c.TargetPath != b.target("ro") || c.StagingPath != b.staging(v) || c.Caller != os.Getpid() ||
		!c.OK() || c.Capability != "MULTI_NODE_MULTI_WRITER:mount::" || c.PublishContext["csitest/node"] != "node-1" || c.End.Before(c.Start) {
		t.Errorf("call: %+v", c)
	}
	if c := j.Calls[2]; !slices.Equal(c.SecretKeys, []string{"key"}) || c.VolumeContext["csitest/name"] != "data" {
		t.Errorf("call: %+v", c)
	}
	if raw, err := os.ReadFile(b.cfg.JournalPath()); err != nil || strings.Contains(string(raw), "s3cret") {
		t.Errorf("the journal holds a secret: %v", err)
	}
	if mem := b.p.Calls(); mem.String() != j.Calls.String() {
		t.Errorf("in memory:\n%sin the journal:\n%s", mem, j.Calls)
	}
}

func TestUnstagedPluginAndBlock(t *testing.T) {
	b := start(t, Config{Volumes: []string{"/odd/../id"}})
	r := b.publishRequest("/odd/../id", "dir")
	r.StagingTargetPath = ""
	_, err := csi.NewNodeClient(b.conn).NodePublishVolume(b.ctx(), r)
	b.must(err)
	if !isMount(b.target("dir")) {
		t.Error("nothing is mounted")
	}
	b.must(b.unpublish("/odd/../id", "dir"))
	r = b.publishRequest("/odd/../id", "block")
	r.StagingTargetPath = ""
	r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	_, err = csi.NewNodeClient(b.conn).NodePublishVolume(b.ctx(), r)
	b.must(err)
	if info, err := os.Stat(b.target("block")); err != nil || info.Size() != blockSize {
		t.Errorf("block target: %v, %v", info, err)
	}
	b.must(b.unpublish("/odd/../id", "block"))
	b.noViolations()
	b.code(codes.NotFound, b.publish("unknown", "x"))
}

func TestInfo(t *testing.T) {
	for name, row := range map[string]struct {
		cfg                      Config
		services, ctrl, node     int
		ctrlCode, nodeCode, list codes.Code
	}{
		"all":           {cfg: full, services: 1, ctrl: 4, node: 3, list: codes.Unimplemented},
		"nothing":       {services: 1, list: codes.Unimplemented},
		"no controller": {cfg: Config{NoController: true, Stage: true}, node: 1, ctrlCode: codes.Unimplemented, list: codes.Unimplemented},
		"no node":       {cfg: Config{NoNode: true}, services: 1, nodeCode: codes.Unimplemented, list: codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, row.cfg)
			info, err := csi.NewIdentityClient(b.conn).GetPluginInfo(b.ctx(), &csi.GetPluginInfoRequest{})
			if err != nil || info.Name != "csitest.example.com" || info.VendorVersion == "" {
				t.Errorf("info: %v, %v", info, err)
			}
			services, err := csi.NewIdentityClient(b.conn).GetPluginCapabilities(b.ctx(), &csi.GetPluginCapabilitiesRequest{})
			if err != nil || len(services.Capabilities) != row.services {
				t.Errorf("services: %v, %v", services, err)
			}
			ctrl, err := csi.NewControllerClient(b.conn).ControllerGetCapabilities(b.ctx(), &csi.ControllerGetCapabilitiesRequest{})
			b.code(row.ctrlCode, err)
			node, err := csi.NewNodeClient(b.conn).NodeGetCapabilities(b.ctx(), &csi.NodeGetCapabilitiesRequest{})
			b.code(row.nodeCode, err)
			if len(ctrl.GetCapabilities()) != row.ctrl || len(node.GetCapabilities()) != row.node {
				t.Errorf("capabilities: %v, %v", ctrl, node)
			}
			_, err = csi.NewNodeClient(b.conn).NodeGetInfo(b.ctx(), &csi.NodeGetInfoRequest{})
			b.code(row.nodeCode, err)
			b.noViolations()
			_, err = csi.NewControllerClient(b.conn).ListVolumes(b.ctx(), &csi.ListVolumesRequest{})
			b.code(row.list, err)
		})
	}
}

func TestCreateAgain(t *testing.T) {
	b := start(t, Config{CreateDelete: true, IDPrefix: "/vol/"})
	create := func(least, most int64) (*csi.CreateVolumeResponse, error) {
		return csi.NewControllerClient(b.conn).CreateVolume(b.ctx(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()},
			CapacityRange: &csi.CapacityRange{RequiredBytes: least, LimitBytes: most}})
	}
	first, err := create(100, 0)
	b.must(err)
	again, err := create(50, 200)
	if err != nil || first.Volume.VolumeId != "/vol/a" || again.Volume.VolumeId != "/vol/a" || again.Volume.CapacityBytes != 100 {
		t.Errorf("%v, %v, %v", first, again, err)
	}
	_, err = create(200, 0)
	b.code(codes.AlreadyExists, err)
	_, err = csi.NewControllerClient(b.conn).ValidateVolumeCapabilities(b.ctx(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "/vol/a",
		VolumeCapabilities: []*csi.VolumeCapability{writer()}, VolumeContext: first.Volume.VolumeContext})
	b.must(err)
	b.noViolations()
}

func TestSockets(t *testing.T) {
	b := start(t, full)
	if err := New(b.cfg).Start(b.endpoint()); err == nil || !strings.Contains(err.Error(), "another process answers") {
		t.Errorf("a socket in use: %v", err)
	}
	b.must(b.p.Close())
	if _, err := os.Lstat(b.dir + "/csi.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left after Close: %v", err)
	}

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.dir + "/csi.sock"})
	b.must(err)
	stale.SetUnlinkOnClose(false)
	b.must(stale.Close())
	b.restart()
	b.must(b.attach("a"))

	b.must(os.WriteFile(b.dir+"/file", nil, 0o600))
	if err := New(b.cfg).Start(b.dir + "/file"); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if err := New(b.cfg).Start("tcp://x"); err == nil {
		t.Error("a bad endpoint is taken")
	}
	if err := New(b.cfg).Close(); err != nil {
		t.Errorf("closing what was never started: %v", err)
	}
}

func TestJournalReading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	if calls, err := ReadJournal(path); err != nil || len(calls) != 0 || calls.Mark() != 0 {
		t.Errorf("no file: %v, %v", calls, err)
	}
	if err := os.WriteFile(path, []byte(`{"event":"call","call":{"seq":1,"method":"Probe"}}`+"\n"+`{"event":"ca`), 0o600); err != nil {
		t.Fatal(err)
	}
	calls, err := ReadJournal(path)
	if err != nil || len(calls) != 1 || calls[0].Ended() || calls.Mark() != 1 {
		t.Errorf("a line being written: %v, %v", calls, err)
	}
	for _, bad := range []string{"{\n", `{"event":"call"}` + "\n"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadJournal(path); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func TestPluginFile(t *testing.T) {
	raw, err := Config{Base: "/b", Stage: true}.PluginFile("p1", "/bin/x")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		ID   string
		Exec struct {
			Command []string
			Env     map[string]string
		}
	}
	var cfg Config
	if err := errors.Join(json.Unmarshal(raw, &file), json.Unmarshal([]byte(file.Exec.Env[envConfig]), &cfg)); err != nil {
		t.Fatal(err)
	}
	if file.ID != "p1" || !slices.Equal(file.Exec.Command, []string{"/bin/x"}) || cfg.Base != "/b" || !cfg.Stage {
		t.Errorf("%s", raw)
	}
}
