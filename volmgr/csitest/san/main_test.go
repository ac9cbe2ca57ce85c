package san

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// envIsolated is set in the process that runs the tests in a mount namespace of its own.
const envIsolated = "SAN_TEST_ISOLATED"

func TestMain(m *testing.M) {
	switch {
	case IsChild():
		os.Exit(Main())
	case os.Getenv(envIsolated) != "":
		os.Exit(m.Run())
	}

	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), envIsolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, "FAIL:", err)
	os.Exit(1)
}

// lab is a SAN with hosts. A test that leaves a mount or a violation fails.
type lab struct {
	t          *testing.T
	dir        string
	s          *SAN
	violations int // number of violations that the test expects
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, dir: tempDir(t)}
	s, err := Start(l.dir + "/san")
	l.must(err)
	l.s = s
	l.must(s.AddDisk("v", 0))
	t.Cleanup(func() {
		if broken := s.Violations(); len(broken) != l.violations {
			t.Errorf("%d violations instead of %d: %v", len(broken), l.violations, broken)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "san") //nolint:usetesting // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) code(want codes.Code, err error) {
	l.t.Helper()
	if got := status.Code(err); got != want {
		l.t.Fatalf("got %v (%v), want %v", got, err, want)
	}
}

func (l *lab) ctx() context.Context { return within(l.t, 20*time.Second) }

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until the condition is true.
func (l *lab) eventually(what string, condition func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("this did not happen: %s", what)
		}
	}
}

// expect fails the test unless the rules were broken, in this order.
func (l *lab) expect(rules ...Rule) []Event {
	l.t.Helper()
	l.violations = len(rules)
	broken := l.s.Violations()
	ok := len(broken) == len(rules)
	for i := range rules {
		ok = ok && broken[i].Rule == rules[i]
	}
	if !ok {
		l.t.Fatalf("violations %v, want %v", broken, rules)
	}
	return broken
}

// unused fails the test unless all attachments and sessions have ended.
func (l *lab) unused() {
	l.t.Helper()
	l.eventually("no attachment and no session", func() bool { return len(l.s.Attachments())+len(l.s.Sessions()) == 0 })
}

// host is a mount namespace with a driver. Its calls use the staging path and target of volume v.
type host struct {
	*lab
	name   string
	cfg    Config
	pid    int // process that keeps the namespace
	driver *exec.Cmd
	conn   *grpc.ClientConn
	mode   Mode
	block  bool
	given  map[string]string
}

const (
	oneWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	allWriters = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	manyOne    = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	allReaders = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
)

// full is a driver with all capabilities.
var full = Config{Attach: true, PublishedNodes: true, Provision: true, Stage: true, Expand: true, Snapshots: true}

func (l *lab) host(name string, cfg Config) *host {
	l.t.Helper()
	h := &host{lab: l, name: name, cfg: l.s.Driver(name, cfg), mode: oneWriter}
	keeper := exec.Command("cat")
	in, err := keeper.StdinPipe()
	l.must(err)
	keeper.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	l.must(keeper.Start())
	h.pid = keeper.Process.Pid
	l.t.Cleanup(func() {
		_ = in.Close()
		_ = keeper.Wait()
		l.eventually("the mounts of "+name+" have ended", func() bool {
			for _, one := range l.s.Sessions() {
				if one.Node == name {
					return false
				}
			}
			return true
		})
	})
	for _, dir := range []string{"staging", "targets"} {
		l.must(os.MkdirAll(filepath.Join(l.dir, name, dir), 0o755))
	}
	h.start()
	return h
}

// start starts the driver.
func (h *host) start() {
	h.t.Helper()
	exe, err := os.Executable()
	h.must(err)
	env, err := h.cfg.Environment()
	h.must(err)
	h.driver = h.command(exe)
	h.driver.Stderr = os.Stderr
	h.driver.Env = append(append(os.Environ(), env...), "CSI_ENDPOINT=unix://"+h.path("csi.sock"))
	h.must(h.driver.Start())
	started := h.driver
	h.t.Cleanup(func() {
		_ = started.Process.Kill() // some tests have already killed the driver
		_ = started.Wait()
	})
	h.conn, err = grpc.NewClient("unix://"+h.path("csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: time.Second}))
	h.must(err)
	conn := h.conn
	h.t.Cleanup(func() { _ = conn.Close() })
	_, err = csi.NewIdentityClient(h.conn).Probe(h.ctx(), &csi.ProbeRequest{}, grpc.WaitForReady(true))
	h.must(err)
}

func (h *host) kill() {
	h.t.Helper()
	h.must(h.driver.Process.Kill())
	_ = h.driver.Wait()
}

// command returns a command that runs in the mount namespace of the host.
func (h *host) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(h.pid), "-m", "--"}, args...)...)
	return cmd
}

func (h *host) path(name string) string { return filepath.Join(h.dir, h.name, name) }
func (h *host) target() string          { return h.path("targets/v") }

// try runs a shell script on the host. $v is the target of the volume.
func (h *host) try(script string) (string, error) {
	cmd := h.command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "v="+h.target())
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (h *host) sh(script string) string {
	h.t.Helper()
	out, err := h.try(script)
	if err != nil {
		h.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return out
}

// fails fails the test unless the script fails with the given message.
func (h *host) fails(script, message string) {
	h.t.Helper()
	if out, err := h.try(script); err == nil || !strings.Contains(out, message) {
		h.t.Errorf("%s: %v: %q, want %q", script, err, out, message)
	}
}

// talk starts a shell script. It returns a function that sends an empty line to the script, and one
// that reads a line of its output.
func (h *host) talk(script string) (send func(), line func() string) {
	h.t.Helper()
	cmd := h.command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "v="+h.target())
	in, err := cmd.StdinPipe()
	h.must(err)
	out, err := cmd.StdoutPipe()
	h.must(err)
	h.must(cmd.Start())
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill() // most scripts have ended
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	send = func() {
		_, err := io.WriteString(in, "\n")
		h.must(err)
	}
	return send, func() string {
		lines.Scan()
		return lines.Text()
	}
}

func (h *host) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: h.mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
	if h.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

func (h *host) controller() csi.ControllerClient { return csi.NewControllerClient(h.conn) }
func (h *host) node() csi.NodeClient             { return csi.NewNodeClient(h.conn) }

// attachTo calls ControllerPublish for another host, or for this one.
func (h *host) attachTo(ctx context.Context, to *host, readOnly bool) error {
	resp, err := h.controller().ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: to.name,
		VolumeCapability: to.capability(), Readonly: readOnly})
	if err == nil {
		to.given = resp.GetPublishContext()
	}
	return err
}

func (h *host) attach() error { return h.attachTo(h.ctx(), h, false) }

func (h *host) detachFrom(ctx context.Context, node string) error {
	_, err := h.controller().ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: node})
	return err
}

func (h *host) detach() error { return h.detachFrom(h.ctx(), h.name) }

func (h *host) stage() error {
	_, err := h.node().NodeStageVolume(h.ctx(), &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: h.path("staging"),
		VolumeCapability: h.capability(), PublishContext: h.given})
	return err
}

func (h *host) unstage() error {
	_, err := h.node().NodeUnstageVolume(h.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: h.path("staging")})
	return err
}

func (h *host) publish(readOnly bool) error {
	m := &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: h.target(), VolumeCapability: h.capability(), PublishContext: h.given, Readonly: readOnly}
	if h.cfg.Stage {
		m.StagingTargetPath = h.path("staging")
	}
	_, err := h.node().NodePublishVolume(h.ctx(), m)
	return err
}

func (h *host) unpublish() error {
	_, err := h.node().NodeUnpublishVolume(h.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: h.target()})
	return err
}

// up makes the volume available at the target.
func (h *host) up() {
	h.t.Helper()
	if h.cfg.Attach {
		h.must(h.attach())
	}
	if h.cfg.Stage {
		h.must(h.stage())
	}
	h.must(h.publish(false))
}

func (h *host) down() {
	h.t.Helper()
	h.must(h.unpublish())
	if h.cfg.Stage {
		h.must(h.unstage())
	}
	if h.cfg.Attach {
		h.must(h.detach())
	}
}

// signal stops or continues the driver, and waits until the kernel has done it.
func (h *host) signal(sig unix.Signal, state string) {
	h.t.Helper()
	h.must(h.driver.Process.Signal(sig))
	h.eventually("the driver is in state "+state, func() bool {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.driver.Process.Pid))
		h.must(err)
		_, after, _ := strings.Cut(string(raw), ") ")
		return strings.HasPrefix(after, state)
	})
}
