package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The test binary can also run as the fake plugin, which serves CSI. It does so if envFake is set.
// Files in a directory control the behaviour of the fake plugin, so that a test can change the
// behaviour at any time.
const (
	envFake  = "FAKE_PLUGIN_DIR" // directory of the files that control the fake plugin
	envAgent = "FAKE_AGENT_DIR"  // if set, the binary runs as a fake agent
	// identifies this run of the tests, so that leftover processes can be found
	envRun = "FAKE_PLUGIN_RUN"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envFake); dir != "" {
		os.Exit(fakePlugin(dir))
	}
	if dir := os.Getenv(envAgent); dir != "" {
		os.Exit(fakeAgent(dir))
	}
	if err := os.Setenv(envRun, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())); err != nil {
		panic(err)
	}
	code := m.Run()
	// Some processes end only when their parent ends, so give them a moment.
	left := runPIDs(os.Getenv(envRun))
	for end := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		left = runPIDs(os.Getenv(envRun))
	}
	for _, pid := range left {
		fmt.Fprintf(os.Stderr, "FAIL: process %d is left\n", pid)
		code = 1
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/volagent-plugin-fake-*")
	for _, dir := range groups {
		_ = os.Remove(dir) // if a plugin ended while no agent ran, its cgroup remains
	}
	os.Exit(code)
}

// runPIDs returns the pids of all other live processes of one run of the tests.
func runPIDs(run string) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err == nil && strings.Contains("\x00"+string(env), "\x00"+envRun+"="+run+"\x00") {
			if pid, _ := strconv.Atoi(filepath.Base(d)); pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// behaviour is a directory with files that control the fake plugin. Each file switches on one
// behaviour.
type behaviour string

func (b behaviour) is(name string) bool {
	_, err := os.Stat(filepath.Join(string(b), name))
	return err == nil
}

func (b behaviour) text(name, otherwise string) string {
	if data, err := os.ReadFile(filepath.Join(string(b), name)); err == nil {
		return string(data)
	}
	return otherwise
}

// fakePlugin serves CSI on the endpoint that the variable CSI_ENDPOINT names.
func fakePlugin(dir string) int {
	b := behaviour(dir)
	f, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	if err := errors.Join(err, f.Close()); err != nil {
		return 9
	}
	fmt.Println("fake plugin started, secret is", os.Getenv("FAKE_SECRET"))
	if b.is("env") {
		if err := os.WriteFile(filepath.Join(dir, "env"), []byte(strings.Join(os.Environ(), "\n")), 0o600); err != nil {
			return 9
		}
	}
	if b.is("daemon") { // the child is in the plugin's process group, like a FUSE daemon
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
		if err := os.WriteFile(filepath.Join(dir, "daemon"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
			return 9
		}
	}
	if b.is("exit") {
		fmt.Fprintln(os.Stderr, "fatal: cannot work like this")
		return 3
	}
	if b.is("silent") {
		// Do not use select {}, because the Go runtime would end the process with a deadlock error.
		signalled := make(chan os.Signal, 1)
		signal.Notify(signalled, syscall.SIGUSR1)
		<-signalled
	}
	socket := strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	if err := fakeServer(b).Serve(l); err != nil {
		return 5
	}
	return 0
}

// fakeServer returns the gRPC server of the fake plugin. Some tests run this server in their own
// process.
func fakeServer(b behaviour) *grpc.Server {
	s := grpc.NewServer()
	f := &fakeServices{behaviour: b}
	csi.RegisterIdentityServer(s, f)
	csi.RegisterNodeServer(s, f)
	csi.RegisterControllerServer(s, f)
	return s
}

type fakeServices struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
	behaviour behaviour
}

func (f *fakeServices) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	for f.behaviour.is("hang") {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	if f.behaviour.is("probe-fails") {
		return nil, status.Error(codes.Internal, "no storage in sight")
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!f.behaviour.is("not-ready"))}, nil
}

func (f *fakeServices) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: f.behaviour.text("driver", "fake.test"), VendorVersion: "1.0"}, nil
}

func (f *fakeServices) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	if !f.behaviour.is("controller") {
		return &csi.GetPluginCapabilitiesResponse{}, nil
	}
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}}}, nil
}

func (f *fakeServices) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// ControllerPublishVolume returns the pid of the process that serves the call.
func (f *fakeServices) ControllerPublishVolume(ctx context.Context, _ *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if f.behaviour.is("late") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"pid": strconv.Itoa(os.Getpid())}}, nil
}

func (f *fakeServices) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (f *fakeServices) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-1", MaxVolumesPerNode: 3}, nil
}
