package csitest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// detachWithin calls ControllerUnpublish with a time limit.
func (b *bench) detachWithin(d time.Duration, v string) error {
	_, err := b.controller().ControllerUnpublishVolume(within(b.t, d), &csi.ControllerUnpublishVolumeRequest{VolumeId: v, NodeId: "node-1"})
	return err
}

// attachedNow reports whether the storage is connected. It examines the simulated storage directly,
// because the plugin's answers may be wrong.
func (b *bench) attachedNow(v string) bool {
	a, err := b.p.store.attachments(v)
	b.must(err)
	return len(a.Nodes) > 0
}

// awaitDetached waits until the storage is disconnected.
func (b *bench) awaitDetached(v string) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx := b.ctx(); b.attachedNow(v); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatal("it stays attached")
		}
	}
}

// TestBounded checks that a bounded call takes effect within its time limit, counted from the
// moment at which its caller gave up.
func TestBounded(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: ControllerUnpublish, Delay: time.Hour, Bounded: true})
	begun := time.Now()
	b.code(codes.DeadlineExceeded, b.detachWithin(time.Second, "a"))
	if !b.attachedNow("a") {
		t.Error("it is detached before the caller gave up")
	}
	b.awaitDetached("a")
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	b.noViolations()
}

// TestOutlives checks that a call takes effect even if the plugin is killed and restarted.
func TestOutlives(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: ControllerUnpublish, Delay: 2 * time.Second, Outlives: true})
	done := make(chan error, 1)
	go func() { done <- b.detach("a") }()
	b.await(ControllerUnpublish)
	b.p.crash()
	<-b.p.Crashed()
	if err := <-done; err == nil {
		t.Error("the call succeeded although the plugin crashed")
	}
	b.restart()
	if !b.attachedNow("a") {
		t.Error("it is detached before its time")
	}
	b.awaitDetached("a")
	b.must(b.p.Close())
	if left, err := os.ReadDir(b.cfg.Base + "/late"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	b.noViolations()
}

// TestOutlivesBounded ends the caller and then the plugin. The call must still take effect within
// its time limit, counted from the end of the caller.
func TestOutlivesBounded(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: ControllerUnpublish, Delay: time.Hour, Bounded: true, Outlives: true})
	b.code(codes.DeadlineExceeded, b.detachWithin(2*time.Second, "a"))
	ended := time.Now()
	file := b.lateFile()
	for ctx := b.ctx(); time.Until(file.Due) > time.Minute; file = b.lateFile() {
		if ctx.Err() != nil {
			t.Fatal("the end of the caller has no effect")
		}
	}
	if latest := ended.Add(2 * time.Second); file.Due.After(latest) {
		t.Errorf("the effect is due at %s, after %s", file.Due, latest)
	}
	b.p.crash()
	<-b.p.Crashed()
	b.restart()
	b.awaitDetached("a")
	b.noViolations()
}

// lateFile returns the content of the only file in <base>/late.
func (b *bench) lateFile() (e late) {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(b.cfg.Base, "late", "*.json"))
	b.must(err)
	if len(files) != 1 {
		b.t.Fatalf("stored are %q", files)
	}
	_, err = readJSON(files[0], &e)
	b.must(err)
	return e
}

// TestDetachedInUse makes a ControllerUnpublish that takes effect late, after the volume has been
// mounted again. The plugin must report the late effect. It must also report the ControllerPublish
// that did not wait for this effect.
func TestDetachedInUse(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: ControllerUnpublish, Delay: 3 * time.Second, Bounded: true})
	b.code(codes.DeadlineExceeded, b.detachWithin(2*time.Second, "a"))
	b.up("a", "t")
	b.awaitDetached("a")
	var rules []Rule
	for _, v := range b.p.Violations() {
		rules = append(rules, v.Rule)
	}
	if len(rules) != 2 || rules[0] != RuleOvertaken || rules[1] != RuleInUse {
		t.Errorf("violations: %v", b.p.Violations())
	}
}

// TestUnstagedInUse checks that the plugin reports a NodeUnstage of storage that is still mounted
// elsewhere, even if the plugin did not record the other mount.
func TestUnstagedInUse(t *testing.T) {
	b := start(t, full)
	b.up("a")
	b.must(os.Mkdir(b.target("elsewhere"), 0o755))
	b.must(bind(b.staging("a"), b.target("elsewhere")))
	b.must(b.unstage("a"))
	b.must(b.detach("a"))
	got := b.p.Violations()
	if len(got) != 2 || got[0].Rule != RuleInUse || got[0].Method != NodeUnstage || got[1].Method != ControllerUnpublish {
		t.Errorf("violations: %v", got)
	}
	b.must(unmountAll(b.target("elsewhere")))
}

// TestOvertaken checks that the plugin reports a publish while an earlier NodeUnstage may still be
// running.
func TestOvertaken(t *testing.T) {
	b := start(t, full)
	b.up("a")
	b.inject(Fault{Method: NodeUnstage, Hang: true})
	ctx, cancel := context.WithCancel(b.ctx())
	done := make(chan error, 1)
	go func() {
		_, err := b.node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "a", StagingTargetPath: b.staging("a")})
		done <- err
	}()
	b.await(NodeUnstage)
	cancel()
	b.code(codes.Canceled, <-done)
	b.must(b.stage("a"))
	got := b.p.Violations()
	if len(got) != 1 || got[0].Rule != RuleOvertaken {
		t.Errorf("violations: %v", got)
	}
	b.must(b.cfg.Faults().Clear())
}

// TestImage checks that a volume with its own file system keeps its files. If a process still uses
// a lazily unmounted mount, the plugin must report a ControllerUnpublish.
func TestImage(t *testing.T) {
	if os.Getuid() != 0 || loopControlMissing() {
		t.Skip("there are no loop devices")
	}
	cfg := full
	cfg.Images = "im"
	b := start(t, cfg)
	b.up("im", "t")
	b.must(os.WriteFile(b.target("t/file"), []byte("kept"), 0o600))
	down := func() {
		b.must(b.unpublish("im", "t"))
		b.must(b.unstage("im"))
		b.must(b.detach("im"))
	}
	down()
	if dev := DeviceOf(b.cfg, "im"); dev != "" {
		t.Errorf("%s is left", dev)
	}
	b.up("im", "t")
	f, err := os.Open(b.target("t/file"))
	b.must(err)
	b.noViolations()
	_, mark, err := ViolationsSince(b.cfg.JournalPath(), 0)
	b.must(err)
	b.must(unix.Unmount(b.target("t"), unix.MNT_DETACH))
	b.must(unix.Unmount(b.staging("im"), unix.MNT_DETACH))
	down()
	if got := b.p.Violations(); len(got) != 1 || got[0].Rule != RuleInUse || !strings.Contains(got[0].Words, "busy") {
		t.Errorf("violations: %v", got)
	}
	if got, _, err := ViolationsSince(b.cfg.JournalPath(), mark); err != nil || len(got) != 1 {
		t.Errorf("since the mark: %v, %v", got, err)
	}
	raw := make([]byte, 4)
	if _, err := f.Read(raw); err != nil || string(raw) != "kept" {
		t.Errorf("it holds %q, %v", raw, err)
	}
	b.must(f.Close())
}
