package csiclient_test

import (
	"context"
	"path"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestProbe(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for name, row := range map[string]struct {
		resp  *csi.ProbeResponse
		err   error
		ready bool
		fails bool
	}{
		"ready":         {resp: &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, ready: true},
		"initialising":  {resp: &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}},
		"unset":         {resp: &csi.ProbeResponse{}, ready: true},
		"unimplemented": {err: status.Error(codes.Unimplemented, "no"), ready: true},
		"unhealthy":     {err: status.Error(codes.FailedPrecondition, "no"), fails: true},
	} {
		f.on(func(context.Context, string, any) (any, error) { return row.resp, row.err })
		ready, err := c.Probe(t.Context())
		if ready != row.ready || (err != nil) != row.fails {
			t.Errorf("%s: got %v, %v", name, ready, err)
		}
	}
}

func TestInfo(t *testing.T) {
	full := plugin.Info{
		Driver: "fake.test", Version: "1.2", NodeID: "n1", Topology: map[string]string{"zone": "a"}, MaxVolumes: 7,
		HasController: true, HasNode: true,
		ControllerCaps: []string{"CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "PUBLISH_READONLY", "SINGLE_NODE_MULTI_WRITER"},
		NodeCaps:       []string{"STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER"},
		Caps: plugin.Caps{Attach: true, AttachReadOnly: true, CreateDelete: true, Stage: true, Stats: true,
			ControllerMultiWriter: true, NodeMultiWriter: true, Topology: true},
	}
	nodeOnly := full
	nodeOnly.HasController, nodeOnly.ControllerCaps = false, nil
	nodeOnly.Caps = plugin.Caps{Stage: true, Stats: true, NodeMultiWriter: true}
	controllerOnly := full
	controllerOnly.HasNode, controllerOnly.NodeCaps, controllerOnly.NodeID, controllerOnly.Topology, controllerOnly.MaxVolumes = false, nil, "", nil, 0
	controllerOnly.Caps = plugin.Caps{Attach: true, AttachReadOnly: true, CreateDelete: true, ControllerMultiWriter: true, Topology: true}
	odd := full
	odd.ControllerCaps, odd.NodeCaps, odd.Caps = []string{"UNKNOWN", "4711"}, []string{"STAGE_UNSTAGE_VOLUME", "99"}, plugin.Caps{Stage: true}

	unimplemented := func(methods ...string) func(context.Context, string, any) (any, error) {
		return func(_ context.Context, m string, _ any) (any, error) {
			if slices.Contains(methods, m) {
				return nil, status.Error(codes.Unimplemented, "unknown method")
			}
			return nil, nil
		}
	}
	for name, row := range map[string]struct {
		services string
		answer   func(context.Context, string, any) (any, error)
		want     plugin.Info
	}{
		"everything":               {want: full},
		"no controller":            {answer: unimplemented("GetPluginCapabilities"), want: nodeOnly},
		"controller in name only":  {answer: unimplemented("ControllerGetCapabilities"), want: nodeOnly},
		"no node service":          {answer: unimplemented("NodeGetCapabilities", "NodeGetInfo"), want: controllerOnly},
		"asked for the node":       {services: csiclient.NodeOnly, want: nodeOnly},
		"asked for the controller": {services: csiclient.ControllerOnly, want: controllerOnly},
		"unknown capabilities": {want: odd, answer: func(_ context.Context, m string, _ any) (any, error) {
			switch m {
			case "GetPluginCapabilities":
				resp := pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE, 55)
				resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{})
				return resp, nil
			case "ControllerGetCapabilities":
				resp := controllerCaps(0, 4711)
				resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{})
				return resp, nil
			case "NodeGetCapabilities":
				resp := nodeCaps(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, 99)
				resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{})
				return resp, nil
			}
			return nil, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.on(row.answer)
			got, err := f.client(t, csiclient.Options{Services: row.services}).Info(t.Context())
			if err != nil || !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, row.want)
			}
		})
	}
}

func TestInfoFails(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for _, m := range []string{"GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetCapabilities", "NodeGetInfo"} {
		f.fails(m, status.Error(codes.Internal, "not now"))
		_, err := c.Info(t.Context())
		if got := callError(t, err); got.Step != m || got.Code != "Internal" {
			t.Errorf("%s: got %+v", m, *got)
		}
	}
	f.on(func(_ context.Context, m string, _ any) (any, error) {
		if m == "GetPluginInfo" {
			return &csi.GetPluginInfoResponse{}, nil
		}
		return nil, nil
	})
	if _, err := c.Info(t.Context()); callError(t, err).Code != volume.CodeUnverified {
		t.Errorf("a plugin without a name: %v", err)
	}
}

// TestRequestsFollowCapabilities checks that the client omits the fields that the spec forbids for
// a plugin without the matching capability.
func TestRequestsFollowCapabilities(t *testing.T) {
	both := func(a, b call.AccessMode) []call.Capability {
		return []call.Capability{{Access: a, Attachment: call.FileSystem}, {Access: b, Attachment: call.FileSystem}}
	}
	send := func(t *testing.T, c *csiclient.Client) {
		t.Helper()
		mode := call.Capability{Access: call.SingleNodeMultiWriter, Attachment: call.FileSystem}
		pc, vc := map[string]string{"dev": "/dev/x"}, map[string]string{"v": "1"}
		secrets := call.Secrets{"k": call.NewSecret("s3cret")}
		if got, err := call.Do(t.Context(), c, call.ControllerPublishRequest{ExternalID: "x", NodeID: "n1", Capability: mode, FSType: "ext4",
			MountFlags: []string{"noatime"}, ReadOnly: true, VolumeContext: vc, Secrets: secrets}); err != nil || got["dev"] != "/dev/x" {
			t.Errorf("ControllerPublish: %v, %v", got, err)
		}
		if err := call.Run(t.Context(), c, call.NodeStageRequest{ExternalID: "x", StagingPath: "/s", Capability: mode, FSType: "ext4",
			MountFlags: []string{"noatime"}, PublishContext: pc, VolumeContext: vc, Secrets: secrets}); err != nil {
			t.Error(err)
		}
		if err := call.Run(t.Context(), c, call.NodePublishRequest{ExternalID: "x", StagingPath: "/s", TargetPath: "/t",
			Capability: call.Capability{Access: call.SingleNodeSingleWriter, Attachment: call.BlockDevice}, FSType: "ext4",
			ReadOnly: true, PublishContext: pc, VolumeContext: vc, Secrets: secrets}); err != nil {
			t.Error(err)
		}
		if _, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n", CapacityMin: 1, CapacityMax: 2,
			Capabilities: both(call.SingleNodeSingleWriter, call.SingleNodeMultiWriter), Secrets: secrets}); err != nil {
			t.Error(err)
		}
	}

	t.Run("all", func(t *testing.T) {
		f := newFake(t)
		send(t, f.client(t, csiclient.Options{}))
		cp := f.last("ControllerPublishVolume").(*csi.ControllerPublishVolumeRequest)
		if !cp.Readonly || cp.NodeId != "n1" || cp.VolumeContext["v"] != "1" || cp.Secrets["k"] != "s3cret" ||
			cp.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER ||
			cp.VolumeCapability.GetMount().GetFsType() != "ext4" || cp.VolumeCapability.GetMount().GetMountFlags()[0] != "noatime" {
			t.Errorf("ControllerPublish: %v", cp)
		}
		st := f.last("NodeStageVolume").(*csi.NodeStageVolumeRequest)
		if st.StagingTargetPath != "/s" || st.PublishContext["dev"] != "/dev/x" || st.Secrets["k"] != "s3cret" {
			t.Errorf("NodeStage: %v", st)
		}
		pub := f.last("NodePublishVolume").(*csi.NodePublishVolumeRequest)
		if pub.StagingTargetPath != "/s" || pub.TargetPath != "/t" || !pub.Readonly || pub.PublishContext["dev"] != "/dev/x" ||
			pub.VolumeCapability.GetBlock() == nil ||
			pub.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
			t.Errorf("NodePublish: %v", pub)
		}
		cv := f.last("CreateVolume").(*csi.CreateVolumeRequest)
		if len(cv.VolumeCapabilities) != 2 || cv.CapacityRange.RequiredBytes != 1 || cv.CapacityRange.LimitBytes != 2 || cv.Secrets["k"] != "s3cret" {
			t.Errorf("CreateVolume: %v", cv)
		}
	})
	t.Run("none", func(t *testing.T) {
		f := newFake(t)
		f.on(func(_ context.Context, m string, _ any) (any, error) {
			switch m {
			case "GetPluginCapabilities":
				return pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE), nil
			case "ControllerGetCapabilities":
				return controllerCaps(), nil
			case "NodeGetCapabilities":
				return nodeCaps(), nil
			}
			return nil, nil
		})
		c := f.client(t, csiclient.Options{})
		send(t, c)
		cp := f.last("ControllerPublishVolume").(*csi.ControllerPublishVolumeRequest)
		if cp.Readonly || cp.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
			t.Errorf("ControllerPublish: %v", cp)
		}
		st := f.last("NodeStageVolume").(*csi.NodeStageVolumeRequest)
		if len(st.PublishContext) != 0 || st.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
			t.Errorf("NodeStage: %v", st)
		}
		pub := f.last("NodePublishVolume").(*csi.NodePublishVolumeRequest)
		if len(pub.PublishContext) != 0 || !pub.Readonly || pub.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
			t.Errorf("NodePublish: %v", pub)
		}
		if cv := f.last("CreateVolume").(*csi.CreateVolumeRequest); len(cv.VolumeCapabilities) != 1 {
			t.Errorf("CreateVolume: %v", cv)
		}
		_, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n", Capabilities: []call.Capability{fsWriter},
			Topology: call.TopologyRequest{Required: []map[string]string{{"zone": "a"}}}})
		if got := callError(t, err); got.Retry != volume.RetryChange || f.count("CreateVolume") != 1 {
			t.Errorf("topology: %+v after %d calls", *got, f.count("CreateVolume"))
		}
	})
}

func TestAccessModes(t *testing.T) {
	want := map[call.AccessMode]csi.VolumeCapability_AccessMode_Mode{
		call.SingleNodeReaderOnly:   csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		call.SingleNodeWriter:       csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		call.SingleNodeSingleWriter: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		call.SingleNodeMultiWriter:  csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
		call.MultiNodeReaderOnly:    csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		call.MultiNodeSingleWriter:  csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		call.MultiNodeMultiWriter:   csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
	}
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for _, m := range call.AccessModes {
		if err := call.Run(t.Context(), c, call.NodeStageRequest{Capability: call.Capability{Access: m}}); err != nil {
			t.Fatal(err)
		}
		if got := f.last("NodeStageVolume").(*csi.NodeStageVolumeRequest).VolumeCapability.AccessMode.Mode; got != want[m] {
			t.Errorf("%s: got %s, want %s", m, got, want[m])
		}
	}
}

func TestCreateVolume(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	topology := call.TopologyRequest{Required: []map[string]string{{"zone": "a"}}, Preferred: []map[string]string{{"zone": "b"}}}
	got, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n", Capabilities: []call.Capability{fsWriter},
		Parameters: map[string]string{"p": "1"}, Topology: topology, SnapshotID: "snap"})
	want := call.CreateVolumeResult{ExternalID: "x1", Capacity: 5, Context: map[string]string{"c": "1"}, Topologies: []map[string]string{{"zone": "a"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	req := f.last("CreateVolume").(*csi.CreateVolumeRequest)
	if req.Name != "n" || req.Parameters["p"] != "1" || req.CapacityRange != nil || req.VolumeContentSource.GetSnapshot().GetSnapshotId() != "snap" ||
		req.AccessibilityRequirements.Requisite[0].Segments["zone"] != "a" || req.AccessibilityRequirements.Preferred[0].Segments["zone"] != "b" {
		t.Errorf("sent %v", req)
	}
	if _, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n", CloneID: "orig"}); err != nil {
		t.Fatal(err)
	}
	if id := f.last("CreateVolume").(*csi.CreateVolumeRequest).VolumeContentSource.GetVolume().GetVolumeId(); id != "orig" {
		t.Errorf("clone of %q", id)
	}
	f.on(func(context.Context, string, any) (any, error) { return &csi.CreateVolumeResponse{}, nil })
	if _, err := call.Do(t.Context(), c, call.CreateVolumeRequest{Name: "n"}); callError(t, err).Code != volume.CodeUnverified {
		t.Errorf("no volume id: %v", err)
	}
}

func TestValidateComparesTheAnswer(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	req := call.ValidateRequest{ExternalID: "x", Capabilities: []call.Capability{fsWriter, {Access: call.MultiNodeReaderOnly, Attachment: call.FileSystem}},
		FSType: "ext4", VolumeContext: map[string]string{"v": "1"}, Parameters: map[string]string{"p": "1"}}
	type confirmed = csi.ValidateVolumeCapabilitiesResponse_Confirmed
	for name, row := range map[string]struct {
		answer func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed
		ok     bool
	}{
		"all": {ok: true, answer: func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed {
			return &confirmed{VolumeCapabilities: r.VolumeCapabilities, VolumeContext: r.VolumeContext, Parameters: r.Parameters}
		}},
		"only what is required": {ok: true, answer: func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed {
			return &confirmed{VolumeCapabilities: r.VolumeCapabilities}
		}},
		"nothing": {answer: func(*csi.ValidateVolumeCapabilitiesRequest) *confirmed { return nil }},
		"one of two": {answer: func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed {
			return &confirmed{VolumeCapabilities: r.VolumeCapabilities[:1]}
		}},
		"another file system": {answer: func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed {
			for _, vc := range r.VolumeCapabilities {
				vc.GetMount().FsType = "xfs"
			}
			return &confirmed{VolumeCapabilities: r.VolumeCapabilities}
		}},
		"another context": {answer: func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed {
			return &confirmed{VolumeCapabilities: r.VolumeCapabilities, VolumeContext: map[string]string{"v": "2"}}
		}},
		"other parameters": {answer: func(r *csi.ValidateVolumeCapabilitiesRequest) *confirmed {
			return &confirmed{VolumeCapabilities: r.VolumeCapabilities, Parameters: map[string]string{"p": "2"}}
		}},
	} {
		f.on(func(_ context.Context, m string, r any) (any, error) {
			if m == "ValidateVolumeCapabilities" {
				return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: row.answer(r.(*csi.ValidateVolumeCapabilitiesRequest)), Message: "words"}, nil
			}
			return nil, nil
		})
		err := call.Run(t.Context(), c, req)
		if row.ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			if got := callError(t, err); got.Code != volume.CodeUnverified || got.Retry != volume.RetryChange || !got.Answered {
				t.Errorf("%s: %+v", name, *got)
			}
		}
	}
}

func TestStats(t *testing.T) {
	f := newFake(t)
	got, err := call.Do(t.Context(), f.client(t, csiclient.Options{}), call.StatsRequest{ExternalID: "x", Path: "/t", StagingPath: "/s"})
	want := call.Stats{Bytes: &call.Usage{Total: 10, Used: 4, Available: 6}, Inodes: &call.Usage{Total: 100, Used: 1, Available: 99}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if r := f.last("NodeGetVolumeStats").(*csi.NodeGetVolumeStatsRequest); r.VolumePath != "/t" || r.StagingTargetPath != "/s" {
		t.Errorf("sent %v", r)
	}
}

// TestMaxInFlight checks that no more calls run than the limit allows. A waiting call must end at
// its deadline, and the limit must not apply to probes.
func TestMaxInFlight(t *testing.T) {
	const limit = 3
	f := newFake(t)
	var running, most atomic.Int32
	full, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once // a second group of calls reaches the limit again
	f.on(func(_ context.Context, m string, _ any) (any, error) {
		if m == "NodeUnstageVolume" {
			n := running.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if n == limit {
				once.Do(func() { close(full) })
			}
			<-hold
			running.Add(-1)
		}
		return nil, nil
	})
	c := f.client(t, csiclient.Options{MaxInFlight: limit})
	results := make(chan error, 2*limit)
	for range limit {
		go func() { results <- rpcs["NodeUnstageVolume"](t.Context(), c, nil) }()
	}
	<-full
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if got := callError(t, rpcs["NodeUnstageVolume"](ctx, c, nil)); got.Code != "DeadlineExceeded" || !got.Answered || !got.Unsent {
		t.Errorf("a call that was never sent: %+v", *got)
	}
	if ready, err := c.Probe(t.Context()); !ready || err != nil {
		t.Errorf("probe: %v, %v", ready, err)
	}
	for range limit {
		go func() { results <- rpcs["NodeUnstageVolume"](t.Context(), c, nil) }()
	}
	close(hold)
	for range 2 * limit {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != limit || f.count("NodeUnstageVolume") != 2*limit {
		t.Errorf("%d at once, %d in all", most.Load(), f.count("NodeUnstageVolume"))
	}
}

func TestInterceptorsSeeEveryCall(t *testing.T) {
	f := newFake(t)
	var order []string
	note := func(who string) grpc.UnaryClientInterceptor {
		return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			order = append(order, who+" "+path.Base(method))
			return next(ctx, method, req, reply, cc, opts...)
		}
	}
	c := f.client(t, csiclient.Options{Interceptors: []grpc.UnaryClientInterceptor{note("outer"), note("inner")}})
	if _, err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := rpcs["NodeUnstageVolume"](t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"outer Probe", "inner Probe", "outer NodeUnstageVolume", "inner NodeUnstageVolume"}; !slices.Equal(order, want) {
		t.Errorf("got %v", order)
	}
}
