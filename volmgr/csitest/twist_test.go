package csitest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// opens opens a directory in the background, and sends the result to the returned channel.
func opens(path string) <-chan error {
	done := make(chan error, 1)
	go func() {
		f, err := os.Open(path)
		if err == nil {
			err = f.Close()
		}
		done <- err
	}()
	return done
}

// needsFuse skips the test if FUSE is not available.
func needsFuse(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	_ = f.Close() // opening the file has shown that FUSE is available
}

// TestDead checks that a mount whose FUSE daemon has ended is visible but cannot be opened.
func TestDead(t *testing.T) {
	needsFuse(t)
	b := start(t, full)
	b.up("a")
	b.inject(Fault{Method: NodePublish, Twist: Dead})
	b.must(b.publish("a", "t"))
	if info, err := os.Lstat(b.target("t")); err != nil || !info.IsDir() {
		t.Errorf("lstat: %v, %v", info, err)
	}
	if err := <-opens(b.target("t")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("open: %v", err)
	}
	b.must(b.unpublish("a", "t"))
	b.must(b.unstage("a"))
	b.inject(Fault{Method: NodeStage, Twist: Dead})
	b.must(b.stage("a"))
	if err := <-opens(b.staging("a")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("open: %v", err)
	}
	b.must(b.publish("a", "t")) // bind-mounts the dead mount
	if err := <-opens(b.target("t")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("open: %v", err)
	}
	b.noViolations()
}

// TestHung checks that a mount whose FUSE daemon hangs does not answer. After the fault is removed,
// the mount must be dead.
func TestHung(t *testing.T) {
	needsFuse(t)
	b := start(t, full)
	b.up("a")
	id := b.inject(Fault{Method: NodePublish, Twist: Hung})
	b.must(b.publish("a", "t"))
	opened := opens(b.target("t"))
	select {
	case err := <-opened:
		t.Errorf("open: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	b.must(b.cfg.Faults().Remove(id))
	if err := <-opened; !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the open that waited: %v", err)
	}
	if err := <-opens(b.target("t")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("open: %v", err)
	}
	b.must(b.unpublish("a", "t"))
	b.noViolations()
}

// TestServed checks that a FUSE daemon survives if only its plugin is killed. It must end when the
// whole process group of the plugin is killed, or when its mount is unmounted.
func TestServed(t *testing.T) {
	needsFuse(t)
	for name, row := range map[string]struct {
		end  func(*bench, *os.Process)
		want error
	}{
		"plugin killed": {func(b *bench, p *os.Process) { b.must(p.Kill()) }, nil},
		"group killed":  {func(b *bench, p *os.Process) { b.must(unix.Kill(-p.Pid, unix.SIGKILL)) }, unix.ENOTCONN},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, full)
			p := b.child()
			b.up("a")
			b.inject(Fault{Method: NodePublish, Twist: Served})
			b.must(b.publish("a", "t"))
			row.end(b, p)
			b.gone(p)
			for ctx := b.ctx(); !errors.Is(<-opens(b.target("t")), row.want); {
				if ctx.Err() != nil {
					t.Fatalf("open: %v, want %v", <-opens(b.target("t")), row.want)
				}
			}
			b.must(unmountAll(b.target("t")))
		})
	}
}

// TestTwists checks the twists whose effects are visible at once in the file system or in the
// answer.
func TestTwists(t *testing.T) {
	inode := func(b *bench, path string) uint64 {
		var st unix.Stat_t
		b.must(unix.Stat(path, &st))
		return st.Ino
	}
	for name, do := range map[string]func(*testing.T, *bench){
		"remade": func(t *testing.T, b *bench) {
			b.must(b.attach("a"))
			b.must(os.Mkdir(b.staging("a"), 0o711))
			before := inode(b, b.staging("a"))
			b.inject(Fault{Twist: Remade, Times: -1})
			b.must(b.stage("a"))
			if !isMount(b.staging("a")) {
				t.Error("not mounted")
			}
			b.must(unmountAll(b.staging("a")))
			if info, err := os.Stat(b.staging("a")); err != nil || info.Mode().Perm() != 0o750 {
				t.Errorf("the directory, inode %d before, was not made again: %v, %v", before, info, err)
			}
			b.must(b.unstage("a"))
			if _, err := os.Stat(b.staging("a")); !errors.Is(err, unix.ENOENT) {
				t.Errorf("still there: %v", err)
			}
		},
		"direct": func(t *testing.T, b *bench) {
			b.must(b.attach("a"))
			b.inject(Fault{Method: NodeStage, Effect: EffectNone}, Fault{Method: NodePublish, Twist: Direct})
			b.must(b.stage("a"))
			b.must(b.publish("a", "t"))
			b.must(os.WriteFile(b.target("t/kept"), nil, 0o600))
			if _, err := os.Stat(b.p.store.path("a", "data", "kept")); err != nil || isMount(b.staging("a")) {
				t.Errorf("it is not the volume itself: %v", err)
			}
		},
		"locked": func(t *testing.T, b *bench) {
			b.up("a")
			b.inject(Fault{Method: NodePublish, Twist: Locked, Effect: EffectDone, Code: codes.Internal})
			b.code(codes.Internal, b.publish("a", "t"))
			if info, err := os.Stat(b.target("t")); err != nil || info.Mode().Perm() != 0 || isMount(b.target("t")) {
				t.Errorf("the target: %v, %v", info, err)
			}
			b.must(b.unpublish("a", "t"))
		},
		"kept": func(t *testing.T, b *bench) {
			b.up("a", "t")
			b.inject(Fault{Method: NodeUnpublish, Twist: Kept})
			b.must(b.unpublish("a", "t"))
			if _, err := os.Stat(b.target("t")); err != nil || isMount(b.target("t")) {
				t.Errorf("the target: %v", err)
			}
		},
		"strict": func(_ *testing.T, b *bench) {
			b.up("a", "t")
			b.inject(Fault{Method: NodeUnpublish, Twist: Strict, Times: -1})
			b.must(b.unpublish("a", "t"))
			b.code(codes.Internal, b.unpublish("a", "t"))
		},
		"severs": func(t *testing.T, b *bench) {
			b.up("a", "t")
			b.inject(Fault{Method: NodeUnstage, Twist: Severs})
			b.must(b.unstage("a"))
			if isMount(b.target("t")) {
				t.Error("the target lives")
			}
			if got := b.p.Violations(); len(got) != 1 || got[0].Rule != RuleOrder {
				t.Errorf("violations: %v", got)
			}
		},
		"no-dots": func(_ *testing.T, b *bench) {
			b.inject(Fault{Twist: NoDots, Times: -1})
			b.up("a", "t")
			b.must(os.Mkdir(b.target(".x"), 0o711))
			b.code(codes.InvalidArgument, b.publish("a", ".x/u"))
			b.must(b.unpublish("a", "t"))
		},
		"argv": func(_ *testing.T, b *bench) {
			b.inject(Fault{Twist: Argv, Times: -1})
			b.must(b.attach("a"))
			other := exec.Command("sh", "-c", "read line", b.staging("a"))
			in, err := other.StdinPipe()
			b.must(err)
			b.must(other.Start())
			b.code(codes.Internal, b.stage("a"))
			b.must(in.Close())
			_ = other.Wait() // the process ends when its input is closed
			b.must(b.stage("a"))
		},
		"sharing": func(_ *testing.T, b *bench) {
			b.inject(Fault{Twist: Sharing, Times: -1})
			b.must(unix.Mount(b.staging(""), b.staging(""), "", unix.MS_BIND, ""))
			defer func() { b.must(unmountAll(b.staging(""))) }()
			b.must(unix.Mount("", b.staging(""), "", unix.MS_PRIVATE, ""))
			b.must(b.attach("a"))
			b.code(codes.Internal, b.stage("a"))
			b.must(unix.Mount("", b.staging(""), "", unix.MS_SHARED, ""))
			b.must(b.stage("a"))
			b.must(b.unstage("a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, full)
			do(t, b)
			if name != "severs" {
				b.noViolations()
			}
		})
	}
}

// TestTwistIsKnown checks that a fault is invalid if its twist does not apply to its method. A
// fault without a method applies to all methods of its twist.
func TestTwistIsKnown(t *testing.T) {
	for _, bad := range []Fault{{Twist: "bent"}, {Method: NodeStage, Twist: Kept}, {Method: NodeStage, Skip: -1}} {
		if err := bad.valid(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	kept := Fault{Twist: Kept}
	if kept.applies(Call{Method: NodeUnstage}) || !kept.applies(Call{Method: NodeUnpublish}) {
		t.Error("a twist applies to what does not know it")
	}
}

// TestSkip checks that a restarted plugin remembers how many calls a fault has skipped.
func TestSkip(t *testing.T) {
	b := start(t, full)
	b.inject(Fault{Method: ControllerPublish, Skip: 2, Times: 2, Code: codes.Aborted})
	b.must(b.attach("a"))
	b.restart()
	b.must(b.attach("a"))
	b.code(codes.Aborted, b.attach("a"))
	b.code(codes.Aborted, b.attach("a"))
	b.must(b.attach("a"))
	b.noViolations()
}

// TestLists checks that a plugin with ListVolumes reports the capability LIST_VOLUMES, and that a
// fault can crash the plugin during this call.
func TestLists(t *testing.T) {
	b := start(t, Config{Lists: true, AnyVolume: true})
	c := csi.NewControllerClient(b.conn)
	if _, err := c.GetCapacity(b.ctx(), &csi.GetCapacityRequest{}); err != nil {
		t.Error(err)
	}
	b.inject(Fault{Method: ListVolumes, Crash: BeforeEffect})
	_, err := c.ListVolumes(b.ctx(), &csi.ListVolumesRequest{})
	b.code(codes.Unavailable, err)
	<-b.p.Crashed()
	b.noViolations()
}

// TestUnknownCapabilities checks that the plugin can report capabilities that the spec does not
// define, in addition to its known capabilities.
func TestUnknownCapabilities(t *testing.T) {
	cfg := full
	cfg.UnknownCapabilities = true
	b := start(t, cfg)
	var said []string
	id, err := csi.NewIdentityClient(b.conn).GetPluginCapabilities(b.ctx(), &csi.GetPluginCapabilitiesRequest{})
	b.must(err)
	ctl, err := csi.NewControllerClient(b.conn).ControllerGetCapabilities(b.ctx(), &csi.ControllerGetCapabilitiesRequest{})
	b.must(err)
	node, err := csi.NewNodeClient(b.conn).NodeGetCapabilities(b.ctx(), &csi.NodeGetCapabilitiesRequest{})
	b.must(err)
	said = append(said, id.String(), ctl.String(), node.String())
	for _, words := range said {
		if !strings.Contains(words, "987") {
			t.Errorf("no unknown capability: %s", words)
		}
	}
	b.up("a", "t")
	b.noViolations()
}

// TestProbeSaysNothing checks a Probe that answers OK without an effect. The answer must leave open
// whether the plugin is ready.
func TestProbeSaysNothing(t *testing.T) {
	b := start(t, full)
	b.inject(Fault{Method: Probe, Effect: EffectNone})
	resp, err := csi.NewIdentityClient(b.conn).Probe(b.ctx(), &csi.ProbeRequest{})
	b.must(err)
	if resp.Ready != nil {
		t.Errorf("answer: %v", resp)
	}
}

// TestLoopDevices checks that a block volume is a loop device. If the caller requests a read-only
// volume, the device must be read-only, unless a fault makes the plugin ignore the request.
func TestLoopDevices(t *testing.T) {
	if os.Getuid() != 0 || loopControlMissing() {
		t.Skip("there are no loop devices")
	}
	cfg := full
	cfg.LoopDevices = true
	b := start(t, cfg)
	block := writer()
	block.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	b.must(attachAs(b, block))
	b.must(os.Mkdir(b.staging("a"), 0o711))
	stage := b.stageRequest("a")
	stage.VolumeCapability = block
	node := csi.NewNodeClient(b.conn)
	_, err := node.NodeStageVolume(b.ctx(), stage)
	b.must(err)
	defer func() { b.must(b.p.store.release("a")) }()
	for _, ignored := range []bool{false, true} {
		b.inject(Fault{Method: NodePublish, IgnoreReadOnly: ignored})
		r := b.publishRequest("a", "t")
		r.VolumeCapability, r.Readonly = block, true
		_, err = node.NodePublishVolume(b.ctx(), r)
		b.must(err)
		f, err := os.Open(b.target("t"))
		b.must(err)
		ro, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
		b.must(errors.Join(err, f.Close()))
		if (ro == 0) != ignored {
			t.Errorf("ignored %v: BLKROGET says %d", ignored, ro)
		}
		b.must(b.unpublish("a", "t"))
	}
	b.must(b.unstage("a"))
	b.must(b.detach("a"))
	if path := loopOf(b.p.store.path("a", "block.img")); path != "" {
		t.Errorf("%s is left", path)
	}
	b.noViolations()
}

func loopControlMissing() bool {
	_, err := os.Stat("/dev/loop-control")
	return err != nil
}

// TestSerial checks a plugin with Config.Serial. While a slow call runs, the plugin must delay the
// call that undoes it.
func TestSerial(t *testing.T) {
	cfg := full
	cfg.Serial = true
	b := start(t, cfg)
	b.must(b.attach("a"))
	// The time limit of the caller ends after the call has begun, and long before the call ends.
	b.inject(Fault{Method: NodeStage, Delay: 3 * time.Second})
	b.code(codes.DeadlineExceeded, b.stageWithin(time.Second, "a"))
	b.must(b.unstage("a"))
	if isMount(b.staging("a")) {
		t.Error("the stage came after the unstage")
	}
	calls := b.p.Calls()
	if !calls.Only(NodeStage)[0].Ended() {
		t.Error("the unstage did not wait")
	}
	b.noViolations()
}

// TestOldSocket checks that a plugin with Config.OldSocket does not start if a dead plugin has left
// its socket file.
func TestOldSocket(t *testing.T) {
	cfg := full
	cfg.OldSocket = true
	b := start(t, cfg)
	b.inject(Fault{Method: ControllerPublish, Crash: BeforeEffect})
	b.code(codes.Unavailable, b.attach("a"))
	<-b.p.Crashed()
	next := New(b.cfg)
	if err := next.Start(b.endpoint()); err == nil {
		t.Error("it replaced the socket")
	}
	b.must(os.Remove(b.dir + "/csi.sock"))
	b.restart()
}
