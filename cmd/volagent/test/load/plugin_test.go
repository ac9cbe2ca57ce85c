package load_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/statedb"
)

// loadRole is an environment variable that makes this test binary run as a plugin or as an agent
// instead of running the tests.
const (
	loadRole   = "VOLAGENT_LOAD_ROLE"
	rolePlugin = "plugin"
	roleAgent  = "agent"

	loadPluginConfig = "VOLAGENT_LOAD_PLUGIN"  // a loadPlugin in JSON
	loadCommitDelay  = "VOLAGENT_LOAD_COMMIT"  // delay before each commit of roleAgent
	loadProfile      = "VOLAGENT_LOAD_PROFILE" // output file for a CPU profile of roleAgent
	loadTransactions = "VOLAGENT_LOAD_TXNS"    // output file for the kinds of all transactions of roleAgent
)

// loadChild runs this process in the given role and returns its exit code.
func loadChild(role string) int {
	var err error
	switch role {
	case rolePlugin:
		err = serveLoadPlugin()
	case roleAgent:
		return tappedAgent()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load plugin:", err)
		return 1
	}
	return 0
}

// tappedAgent runs the agent in this process, with delayed commits or with a CPU profile.
func tappedAgent() int {
	var seams agent.Seams
	if raw := os.Getenv(loadCommitDelay); raw != "" {
		d, err := time.ParseDuration(raw)
		if err != nil {
			panic(err)
		}
		seams.Tap = func(p statedb.Point) {
			if p == statedb.BeforeCommit {
				time.Sleep(d)
			}
		}
	}
	if path := os.Getenv(loadTransactions); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		seams.Transaction = func(p cluster.Point) {
			if !p.After {
				fmt.Fprintln(f, transactionKind(p.Txn))
			}
		}
	}
	if path := os.Getenv(loadProfile); path != "" {
		f, err := os.Create(path)
		if err != nil {
			panic(err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			panic(err)
		}
		defer pprof.StopCPUProfile()
	}
	if err := os.Unsetenv(loadRole); err != nil { // the plugin files set plugin roles
		panic(err)
	}
	return agent.Main(os.Args[1:], os.Stdout, os.Stderr, seams)
}

// loadPlugin is a minimal CSI plugin. It bind-mounts one directory on all staging paths, and a
// staging path on each target. It counts its calls and can delay them. It writes no log, so that a
// benchmark measures only the caller. It exits when its parent process ends.
type loadPlugin struct {
	Source string        // directory that the plugin mounts
	Delay  time.Duration // delay of each call that changes state
	Attach bool          // whether the plugin requires ControllerPublish
	Parent int

	counts sync.Map // maps each method to an *atomic.Int64
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
}

func (p *loadPlugin) env() []string {
	raw, err := json.Marshal(map[string]any{"Source": p.Source, "Delay": p.Delay, "Attach": p.Attach, "Parent": os.Getpid()})
	if err != nil {
		panic(err)
	}
	return []string{loadRole + "=" + rolePlugin, loadPluginConfig + "=" + string(raw)}
}

func serveLoadPlugin() error {
	p := &loadPlugin{}
	if err := json.Unmarshal([]byte(os.Getenv(loadPluginConfig)), p); err != nil {
		return err
	}
	socket := strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(p.count))
	csi.RegisterIdentityServer(s, p)
	csi.RegisterControllerServer(s, p)
	csi.RegisterNodeServer(s, p)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	go func() {
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-tick.C:
				if unix.Kill(p.Parent, 0) == nil {
					continue
				}
			case <-ctx.Done():
			}
			s.Stop()
			return
		}
	}()
	return s.Serve(l)
}

// changing lists the calls that change state. The plugin delays only these calls.
var changing = []string{
	"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
	"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
}

func (p *loadPlugin) count(ctx context.Context, req any, info *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	n, _ := p.counts.LoadOrStore(method, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	if p.Delay > 0 && slices.Contains(changing, method) {
		time.Sleep(p.Delay)
	}
	return do(ctx, req)
}

// GetPluginInfo answers with the number of calls of each method, in the manifest of the response.
func (p *loadPlugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	resp := &csi.GetPluginInfoResponse{Name: "load.example.com", VendorVersion: "1", Manifest: map[string]string{}}
	p.counts.Range(func(method, n any) bool {
		resp.Manifest[method.(string)] = strconv.FormatInt(n.(*atomic.Int64).Load(), 10)
		return true
	})
	return resp, nil
}

func (p *loadPlugin) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{}
	if p.Attach {
		resp.Capabilities = []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		}}}
	}
	return resp, nil
}

func (p *loadPlugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (p *loadPlugin) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	if p.Attach {
		resp.Capabilities = []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		}}}
	}
	return resp, nil
}

func (p *loadPlugin) ValidateVolumeCapabilities(_ context.Context, m *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: m.GetVolumeCapabilities(), VolumeContext: m.GetVolumeContext(), Parameters: m.GetParameters(),
	}}, nil
}

func (p *loadPlugin) ControllerPublishVolume(context.Context, *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/none"}}, nil
}

func (p *loadPlugin) ControllerUnpublishVolume(context.Context, *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (p *loadPlugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "test-host"}, nil
}

func (p *loadPlugin) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}}}, nil
}

func (p *loadPlugin) NodeStageVolume(_ context.Context, m *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, internal(unix.Mount(p.Source, m.GetStagingTargetPath(), "", unix.MS_BIND, ""))
}

func (p *loadPlugin) NodePublishVolume(_ context.Context, m *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := unix.Mkdir(m.GetTargetPath(), 0o755); err != nil {
		return nil, internal(err)
	}
	return &csi.NodePublishVolumeResponse{}, internal(unix.Mount(m.GetStagingTargetPath(), m.GetTargetPath(), "", unix.MS_BIND, ""))
}

func (p *loadPlugin) NodeUnpublishVolume(_ context.Context, m *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := unix.Unmount(m.GetTargetPath(), unix.UMOUNT_NOFOLLOW)
	return &csi.NodeUnpublishVolumeResponse{}, internal(errors.Join(err, unix.Rmdir(m.GetTargetPath())))
}

func (p *loadPlugin) NodeUnstageVolume(_ context.Context, m *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, internal(unix.Unmount(m.GetStagingTargetPath(), unix.UMOUNT_NOFOLLOW))
}

func internal(err error) error {
	if err == nil {
		return nil
	}
	return grpcstatus.Error(codes.Internal, err.Error())
}
