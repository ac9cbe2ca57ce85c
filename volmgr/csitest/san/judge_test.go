package san

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestConflict(t *testing.T) {
	single := []Mode{oneWriter, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}
	for _, m := range single {
		for _, other := range append(single, allWriters, manyOne, allReaders) {
			for _, writable := range []bool{false, true} {
				a, b := holder{"a", m, writable}, holder{"b", other, writable}
				if conflict(a, b) != RuleTwoNodes || conflict(b, a) != RuleTwoNodes {
					t.Errorf("%+v and %+v do not conflict", a, b)
				}
				if b.node = "a"; conflict(a, b) != "" {
					t.Errorf("%+v and %+v conflict", a, b)
				}
			}
		}
	}
	for _, c := range []struct {
		a, b holder
		want Rule
	}{
		{holder{"a", manyOne, true}, holder{"b", manyOne, true}, RuleTwoWriters},
		{holder{"a", manyOne, true}, holder{"b", manyOne, false}, ""},
		{holder{"a", manyOne, true}, holder{"b", allWriters, true}, RuleTwoWriters},
		{holder{"a", allWriters, true}, holder{"b", allWriters, true}, ""},
		{holder{"a", allWriters, true}, holder{"b", allReaders, false}, ""},
		{holder{"a", allReaders, false}, holder{"b", allReaders, false}, ""},
	} {
		if got := conflict(c.a, c.b); got != c.want || conflict(c.b, c.a) != c.want {
			t.Errorf("%+v and %+v: %q", c.a, c.b, got)
		}
	}
}

// TestTwoNodes attaches a single-node volume to two hosts. A strict SAN refuses it. A permissive
// SAN reports it, and the writes of both.
func TestTwoNodes(t *testing.T) {
	l := newLab(t)
	a, b := l.host("a", full), l.host("b", full)
	a.up()
	l.code(codes.FailedPrecondition, b.attach())
	l.expect()

	l.s.SetPermissive(true)
	b.up()
	l.expect(RuleTwoNodes)
	b.sh(`echo b >$v/b`)
	if got := l.expect(RuleTwoNodes, RuleForeignWrite)[1]; got.Node != "b" || got.Op != "create" || got.Name != "b" {
		t.Errorf("violation: %s", got)
	}
	a.sh(`echo a >$v/a; echo a >>$v/a`)
	if got := l.expect(RuleTwoNodes, RuleForeignWrite, RuleForeignWrite)[2]; got.Node != "a" {
		t.Errorf("violation: %s", got)
	}
	a.down()
	b.sh(`echo b >>$v/b`)
	l.expect(RuleTwoNodes, RuleForeignWrite, RuleForeignWrite)
	b.down()
}

// TestRestoreBesideWriter connects a host again whose volume another host uses by then.
func TestRestoreBesideWriter(t *testing.T) {
	l := newLab(t)
	a, b := l.host("a", full), l.host("b", full)
	l.s.SetPermissive(true)
	a.up()
	l.s.CutOff("a")
	b.up()
	b.sh(`echo b >$v/b`)
	a.fails(`echo a >$v/a`, "Input/output error")
	l.expect()
	l.s.RestoreNode("a")
	l.expect(RuleTwoNodes)
	a.down()
	b.down()
}

// TestManyNodes uses the modes for several nodes.
func TestManyNodes(t *testing.T) {
	for name, cfg := range drivers {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a, b := l.host("a", cfg), l.host("b", cfg)
			a.mode, b.mode = allWriters, allWriters
			a.up()
			b.up()
			a.sh(`echo 1 >$v/file`)
			b.sh(`test $(cat $v/file) = 1; echo 2 >$v/file`)
			if got := a.sh(`cat $v/file; echo 3 >$v/file`); got != "2" {
				t.Errorf("host a reads %q", got)
			}
			if got := b.sh(`cat $v/file`); got != "3" {
				t.Errorf("host b reads %q", got)
			}
			l.expect()
			a.down()
			b.down()
			l.unused()
		})
	}
}

// TestSingleWriter uses a volume with one writer and a reader.
func TestSingleWriter(t *testing.T) {
	for name, cfg := range drivers {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a, b := l.host("a", cfg), l.host("b", cfg)
			a.mode, b.mode = manyOne, manyOne
			a.up()
			a.sh(`echo 1 >$v/file`)
			if cfg.Attach {
				l.must(b.attachTo(l.ctx(), b, true))
			}
			if cfg.Stage {
				l.must(b.stage())
			}
			l.must(b.publish(true))
			b.fails(`cat $v/file && echo 2 >$v/file`, "Read-only file system")
			if cfg.Stage { // the staging path is not read-only, so the SAN refuses the write
				b.fails(`touch `+b.path("staging/new"), "Read-only file system")
			}
			l.expect()
			l.must(b.unpublish())

			if cfg.Attach { // a read-only attachment does not become writable
				l.code(codes.AlreadyExists, b.attach())
				l.must(b.detach())
				l.code(codes.FailedPrecondition, b.attach())
				l.s.SetPermissive(true)
				l.must(b.attach())
			} else {
				l.code(codes.FailedPrecondition, b.publish(false))
				l.s.SetPermissive(true)
				l.must(b.publish(false))
			}
			l.expect(RuleTwoWriters)
		})
	}
}

func TestEmptyNode(t *testing.T) {
	l := newLab(t)
	a, b := l.host("a", full), l.host("b", full)
	a.mode, b.mode = allWriters, allWriters
	a.up()
	l.must(b.attach())
	l.code(codes.NotFound, b.detachFrom(l.ctx(), "unknown"))
	l.expect()
	l.must(b.detachFrom(l.ctx(), ""))
	l.expect(RuleEmptyNode)
	if got := l.s.Attachments(); len(got) != 0 {
		t.Errorf("attachments: %+v", got)
	}
	a.fails(`echo >$v/file`, "Input/output error")
}

func TestLimit(t *testing.T) {
	l := newLab(t)
	l.must(l.s.AddDisk("w", 0))
	cfg := full
	cfg.MaxVolumes = 1
	a, b := l.host("a", cfg), l.host("b", full)
	info, err := a.node().NodeGetInfo(l.ctx(), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetMaxVolumesPerNode() != 1 || info.GetNodeId() != "a" {
		t.Errorf("node: %v, %v", info, err)
	}
	l.must(b.attachTo(l.ctx(), a, false)) // from another host
	attach := func() error {
		_, err := a.controller().ControllerPublishVolume(l.ctx(), &csi.ControllerPublishVolumeRequest{VolumeId: "w", NodeId: "a", VolumeCapability: a.capability()})
		return err
	}
	l.code(codes.ResourceExhausted, attach())
	l.expect()
	l.s.SetPermissive(true)
	l.must(attach())
	l.expect(RuleLimit)
}

// held waits until n calls of hosts wait for a fault.
func (l *lab) held(n int) {
	l.t.Helper()
	l.eventually("calls are held", func() bool {
		count := 0
		for _, c := range l.s.InFlight() {
			if c.Held {
				count++
			}
		}
		return count == n
	})
}

func TestTwoCallers(t *testing.T) {
	l := newLab(t)
	a, b := l.host("a", full), l.host("b", full)
	release := l.s.Hold("ControllerPublishVolume", "a")
	done := make(chan error, 1)
	go func() { done <- a.attach() }()
	l.held(1)
	if _, err := b.controller().ControllerGetVolume(l.ctx(), &csi.ControllerGetVolumeRequest{VolumeId: "v"}); err != nil {
		t.Error(err)
	}
	l.expect()
	l.must(b.detach())
	if got := l.expect(RuleTwoCallers)[0]; got.Node != "b" || got.Method != "ControllerUnpublishVolume" {
		t.Errorf("violation: %s", got)
	}
	release()
	l.must(<-done)
	l.must(b.detachFrom(l.ctx(), "a")) // one after the other
	l.expect(RuleTwoCallers)
}

// TestLateCall holds a call longer than its caller waits. The caller's driver is stopped in one
// case, so that it cannot close its connection.
func TestLateCall(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		l := newLab(t)
		a, b := l.host("a", full), l.host("b", full)
		release := l.s.Hold("ControllerPublishVolume", "a")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		done := make(chan error, 1)
		go func() { done <- a.attachTo(ctx, a, false) }()
		l.held(1)
		if stopped {
			a.signal(unix.SIGSTOP, "T")
		}
		l.code(codes.DeadlineExceeded, <-done)
		cancel()
		l.eventually("the call is abandoned", func() bool { return l.s.InFlight()[0].Abandoned })

		l.s.SetPermissive(true)
		l.must(b.attach()) // not in flight together with the abandoned call
		l.expect()
		release()
		e, err := l.s.AwaitEvent(l.ctx(), 0, func(e Event) bool { return e.Kind == KindAnswer && e.Node == "a" })
		if err != nil || !e.Late || e.Code != "OK" {
			t.Errorf("answer: %s, %v", e, err)
		}
		if got := l.expect(RuleTwoNodes)[0]; !got.Late || got.Node != "a" {
			t.Errorf("violation: %s", got)
		}
		if stopped {
			a.signal(unix.SIGCONT, "S")
		}
		l.must(b.detachFrom(l.ctx(), "a"))
		l.must(b.detach())
	}
}

func TestFaults(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	l.s.FailNext("ControllerPublishVolume", "b", codes.Internal) // another host
	l.s.FailNext("ControllerPublishVolume", "", codes.ResourceExhausted)
	l.code(codes.ResourceExhausted, a.attach())
	if got := l.s.Attachments(); len(got) != 0 {
		t.Errorf("attachments: %+v", got)
	}
	l.s.LoseAnswer("ControllerPublishVolume", "a")
	l.code(codes.Unavailable, a.attach())
	if got := l.s.Attachments(); len(got) != 1 {
		t.Errorf("attachments: %+v", got)
	}
	l.must(a.attach())

	l.s.LoseAnswer("NodeStageVolume", "a")
	l.code(codes.Unavailable, a.stage())
	if got := l.s.Sessions(); len(got) != 1 {
		t.Errorf("sessions: %+v", got)
	}
	l.must(a.stage())
	l.s.FailNext("NodePublishVolume", "a", codes.Aborted)
	l.code(codes.Aborted, a.publish(false))
	l.must(a.publish(false))

	remove := l.s.Delay("NodeUnpublishVolume", "a", 50*time.Millisecond)
	begin := time.Now()
	l.must(a.unpublish())
	if d := time.Since(begin); d < 50*time.Millisecond {
		t.Errorf("the call took %s", d)
	}
	remove()
	l.must(a.unstage())
	l.must(a.detach())
	l.unused()
}

// TestSANEnds checks that a held call does not keep the SAN running.
func TestSANEnds(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	l.s.Hold("ControllerPublishVolume", "")
	done := make(chan error, 1)
	go func() { done <- a.attach() }()
	l.held(1)
	closed := make(chan error, 1)
	s := l.s
	go func() { closed <- s.Close() }()
	if err := <-done; status.Code(err) != codes.Unavailable {
		t.Errorf("attach: %v", err)
	}
	l.must(<-closed)
	if got := s.Attachments(); len(got) != 0 {
		t.Errorf("attachments: %+v", got)
	}
}
