package csitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The test binary also starts itself in other roles. It runs all tests in a separate mount
// namespace, it runs as a plugin, or it runs as a caller that the plugin kills.
const (
	envIsolated = "CSITEST_TEST_ISOLATED"
	envCaller   = "CSITEST_TEST_CALLER" // socket to which the caller connects
)

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // some tests check the modes of directories
	switch {
	case IsChild():
		os.Exit(Main())
	case os.Getenv(envCaller) != "":
		os.Exit(stageAsCaller(os.Getenv(envCaller)))
	case os.Getenv(envIsolated) != "":
		os.Exit(m.Run())
	default:
		os.Exit(runIsolated())
	}
}

func runIsolated() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), envIsolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "FAIL:", err)
	return 1
}

// full is the Config of a plugin with all basic capabilities.
var full = Config{Attach: true, AttachReadOnly: true, CreateDelete: true, Stage: true, Stats: true, MultiWriter: true, AnyVolume: true}

// bench consists of a plugin, which does not run at first, and a caller. The caller obeys the rules
// unless a test makes it break a rule.
type bench struct {
	t    *testing.T
	dir  string
	cfg  Config
	p    *Plugin // nil if the plugin is a child process
	conn *grpc.ClientConn
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cst") //nolint:usetesting // sockets and CSI need short paths
	if err != nil {
		t.Fatal(err)
	}
	cfg.Base = dir + "/base"
	b := &bench{t: t, dir: dir, cfg: cfg}
	t.Cleanup(func() {
		if err := errors.Join(UnmountAll(cfg.JournalPath()), os.RemoveAll(dir)); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	for _, name := range []string{"base", "alloc", "staging"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// start runs a plugin in this process.
func start(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := newBench(t, cfg)
	b.restart()
	return b
}

func (b *bench) restart() {
	b.t.Helper()
	if b.p != nil {
		b.must(b.p.Close())
	}
	b.p = New(b.cfg)
	b.must(b.p.Start(b.endpoint()))
	p := b.p
	b.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.t.Error(err)
		}
	})
	b.dial()
}

func (b *bench) dial() {
	b.t.Helper()
	b.conn = dial(b.t, b.endpoint())
}

func dial(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // an error is ignored, because some tests have already closed the connection
	return conn
}

func (b *bench) endpoint() string          { return "unix://" + b.dir + "/csi.sock" }
func (b *bench) staging(v string) string   { return filepath.Join(b.dir, "staging", v) }
func (b *bench) target(name string) string { return filepath.Join(b.dir, "alloc", name) }

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// code fails the test unless err has the gRPC code want.
func (b *bench) code(want codes.Code, err error) {
	b.t.Helper()
	if got := status.Code(err); got != want {
		b.t.Fatalf("got %v (%v), want %v", got, err, want)
	}
}

// inject adds faults to the plugin and returns the id of the first one.
func (b *bench) inject(f ...Fault) string {
	b.t.Helper()
	ids, err := b.cfg.Faults().Add(f...)
	b.must(err)
	return ids[0]
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func (b *bench) ctx() context.Context { return within(b.t, 20*time.Second) }

func asMount(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
}

// writer returns a capability that every plugin supports, and that permits several targets.
func writer() *csi.VolumeCapability {
	return asMount(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
}

// stageRequest returns a valid NodeStage request with the last publish context that the plugin
// returned.
func (b *bench) stageRequest(v string) *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{VolumeId: v, StagingTargetPath: b.staging(v), VolumeCapability: writer(), PublishContext: b.given(v)}
}

func (b *bench) publishRequest(v, target string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: v, StagingTargetPath: b.staging(v), TargetPath: b.target(target),
		VolumeCapability: writer(), PublishContext: b.given(v)}
}

func (b *bench) given(v string) map[string]string {
	calls, err := ReadJournal(b.cfg.JournalPath())
	b.must(err)
	var given map[string]string
	for _, c := range calls.Of(v).Only(ControllerPublish) {
		if c.OK() {
			given = c.Given
		}
	}
	return maps.Clone(given)
}

func (b *bench) attach(v string) error {
	_, err := csi.NewControllerClient(b.conn).ControllerPublishVolume(b.ctx(),
		&csi.ControllerPublishVolumeRequest{VolumeId: v, NodeId: "node-1", VolumeCapability: writer()})
	return err
}

func (b *bench) detach(v string) error {
	_, err := csi.NewControllerClient(b.conn).ControllerUnpublishVolume(b.ctx(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v, NodeId: "node-1"})
	return err
}

func (b *bench) stage(v string) error { return b.stageWithin(20*time.Second, v) }

func (b *bench) stageWithin(d time.Duration, v string) error {
	b.must(os.MkdirAll(b.staging(v), 0o711))
	_, err := csi.NewNodeClient(b.conn).NodeStageVolume(within(b.t, d), b.stageRequest(v))
	return err
}

func (b *bench) unstage(v string) error {
	_, err := csi.NewNodeClient(b.conn).NodeUnstageVolume(b.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v, StagingTargetPath: b.staging(v)})
	return err
}

func (b *bench) publish(v, target string) error {
	_, err := csi.NewNodeClient(b.conn).NodePublishVolume(b.ctx(), b.publishRequest(v, target))
	return err
}

func (b *bench) unpublish(v, target string) error {
	_, err := csi.NewNodeClient(b.conn).NodeUnpublishVolume(b.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v, TargetPath: b.target(target)})
	return err
}

// up makes a volume available at its targets. It calls ControllerPublish if the plugin has that
// call, NodeStage, and NodePublish for each target.
func (b *bench) up(v string, targets ...string) {
	b.t.Helper()
	if b.cfg.Attach {
		b.must(b.attach(v))
	}
	if b.cfg.Stage {
		b.must(b.stage(v))
	}
	for _, target := range targets {
		b.must(b.publish(v, target))
	}
}

func (b *bench) journal() Journal {
	b.t.Helper()
	j, err := LoadJournal(b.cfg.JournalPath())
	b.must(err)
	return j
}

func (b *bench) noViolations() {
	b.t.Helper()
	for _, v := range b.journal().Violations {
		b.t.Error(v)
	}
}

// await waits until the journal contains a call of the method.
func (b *bench) await(method string) {
	b.t.Helper()
	_, err := AwaitCalls(b.ctx(), b.cfg.JournalPath(), func(cs Calls) bool { return cs.Count(method) > 0 })
	b.must(err)
}

// awaitMount waits until path is a mount point.
func (b *bench) awaitMount(path string) {
	b.t.Helper()
	for ctx := b.ctx(); !isMount(path); {
		select {
		case <-ctx.Done():
			b.t.Fatalf("nothing is mounted at %s", path)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// child runs a plugin in a separate process.
func (b *bench) child() *os.Process {
	b.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	env, err := b.cfg.Environment()
	b.must(err)
	cmd.Env = append(append(os.Environ(), env...), "CSI_ENDPOINT="+b.endpoint())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the process becomes the leader of its own process group
	b.must(cmd.Start())
	b.t.Cleanup(func() { // most tests have already ended the process
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
	})
	b.dial()
	_, err = csi.NewIdentityClient(b.conn).Probe(b.ctx(), &csi.ProbeRequest{}, grpc.WaitForReady(true))
	b.must(err)
	return cmd.Process
}

// gone waits until a process has ended. If a signal ended the process, gone returns the signal.
func (b *bench) gone(p *os.Process) unix.Signal {
	b.t.Helper()
	st, err := p.Wait()
	b.must(err)
	if ws := st.Sys().(syscall.WaitStatus); ws.Signaled() {
		return ws.Signal()
	}
	return 0
}
