package san

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// drivers are the kinds of drivers whose volumes move in the same way.
var drivers = map[string]Config{
	"attach":            {Attach: true, Stage: true},
	"attach, no stage":  {Attach: true},
	"node only":         {NodeOnly: true, Stage: true},
	"node only, direct": {NodeOnly: true},
}

// TestMove moves a volume from a host to another.
func TestMove(t *testing.T) {
	for name, cfg := range drivers {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a, b := l.host("a", cfg), l.host("b", cfg)
			a.up()
			a.sh(`echo hello >$v/file && mkdir $v/dir && mv $v/file $v/dir/file && chown 7:8 $v/dir/file && chmod 640 $v/dir/file`)
			a.down()
			l.unused()
			b.up()
			if got := b.sh(`cat $v/dir/file; stat -c %u:%g:%a $v/dir/file`); got != "hello\n7:8:640" {
				t.Errorf("host b reads %q", got)
			}
			b.sh(`echo more >>$v/dir/file`)
			b.down()
			l.unused()

			by := map[string]string{}
			for _, e := range l.s.Writes("v") {
				by[e.Node] += fmt.Sprintf("%s %s %d+%d, ", e.Op, e.Name, e.Offset, e.Len)
			}
			want := "create file 0+0, write file 0+6, mkdir dir 0+0, rename dir/file 0+0, setattr dir/file 0+0, setattr dir/file 0+0, "
			if by["a"] != want || by["b"] != "write dir/file 6+5, " || len(by) != 2 {
				t.Errorf("writes of a: %q, of b: %q", by["a"], by["b"])
			}
			raw, err := os.ReadFile(filepath.Join(l.s.Disks()[0].Dir, "dir/file"))
			if string(raw) != "hello\nmore\n" || err != nil {
				t.Errorf("on the disk: %q, %v", raw, err)
			}
		})
	}
}

// TestDetachWithOpenFile ends an attachment while a process has a file open.
func TestDetachWithOpenFile(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	a.up()
	send, line := a.talk(`exec 3>>$v/file; echo one >&3; exec 4<$v/file; cat $v/file >/dev/null; echo ready
		read _; echo two >&3 || echo "refused"; cat <&4 || echo "no read"; sync $v/file || echo "no sync"; cat $v/file || echo unreadable; ls $v || echo "no list"; echo end`)
	if got := line(); got != "ready" {
		t.Fatalf("the process said %q", got)
	}
	l.must(a.detach())
	mark := len(l.s.Events())
	send()
	for _, want := range []string{"refused", "no read", "no sync", "unreadable", "no list", "end"} {
		if got := line(); got != want {
			t.Errorf("the process said %q instead of %q", got, want)
		}
	}
	a.fails(`echo three >$v/new`, "Input/output error")
	for _, e := range l.s.Events()[mark:] {
		if e.Kind == KindWrite {
			t.Errorf("after the detach: %s", e)
		}
	}
	if s := l.s.Sessions(); len(s) != 1 || !s[0].Detached {
		t.Errorf("sessions: %+v", s)
	}
	raw, err := os.ReadFile(filepath.Join(l.s.Disks()[0].Dir, "file"))
	if string(raw) != "one\n" || err != nil {
		t.Errorf("on the disk: %q, %v", raw, err)
	}
	a.must(a.unpublish())
	a.must(a.unstage())
}

// TestDetachUnderLoad ends an attachment while a process writes. No write comes after the detach.
func TestDetachUnderLoad(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	a.up()
	_, line := a.talk(`echo ready; while echo line >>$v/file; do :; done 2>/dev/null; echo end`)
	if got := line(); got != "ready" {
		t.Fatalf("the process said %q", got)
	}
	l.eventually("many writes", func() bool { return len(l.s.Writes("v")) > 100 })
	l.must(a.detach())
	before, err := os.ReadFile(filepath.Join(l.s.Disks()[0].Dir, "file"))
	l.must(err)
	if got := line(); got != "end" {
		t.Errorf("the process said %q", got)
	}

	detached, size := false, 0
	for _, e := range l.s.Events() {
		switch e.Kind {
		case KindDetach:
			detached = true
		case KindWrite:
			size += int(e.Len)
			if detached {
				t.Errorf("after the detach: %s", e)
			}
		}
	}
	after, err := os.ReadFile(filepath.Join(l.s.Disks()[0].Dir, "file"))
	if len(before) != len(after) || size != len(after) || err != nil {
		t.Errorf("%d bytes at the detach, %d bytes later, %d bytes in the journal, %v", len(before), len(after), size, err)
	}
	l.must(a.unpublish())
	l.must(a.unstage())
}

// TestUnstageUnderMount ends a node-only attachment while a mount of the volume remains.
func TestUnstageUnderMount(t *testing.T) {
	l := newLab(t)
	cfg := Config{NodeOnly: true, Stage: true}
	a, b := l.host("a", cfg), l.host("b", cfg)
	a.up()
	a.sh(`echo one >$v/file`)
	l.code(codes.FailedPrecondition, b.stage())
	a.must(a.unstage())
	a.fails(`echo two >$v/file`, "Input/output error")
	if s := l.s.Sessions(); len(s) != 1 || !s[0].Detached || len(l.s.Attachments()) != 0 {
		t.Errorf("sessions %+v, attachments %+v", s, l.s.Attachments())
	}
	b.up()
	if got := b.sh(`cat $v/file`); got != "one" {
		t.Errorf("host b reads %q", got)
	}
	b.down()
	a.must(a.unpublish())
	l.unused()
}

// TestPowerLoss ends a host without any call. The attachment of ControllerPublish remains, and
// that of a node-only driver ends with its mounts.
func TestPowerLoss(t *testing.T) {
	for name, cfg := range drivers {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a := l.host("a", cfg)
			a.up()
			a.kill()
			l.must(unix.Kill(a.pid, unix.SIGKILL))
			l.eventually("no session", func() bool { return len(l.s.Sessions()) == 0 })
			if cfg.Attach {
				if got := l.s.Attachments(); len(got) != 1 || got[0].Node != "a" {
					t.Errorf("attachments: %+v", got)
				}
				return
			}
			l.unused()
		})
	}
}

// TestKilledDriver kills a driver. The SAN serves the session on.
func TestKilledDriver(t *testing.T) {
	for name, cfg := range drivers {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a := l.host("a", cfg)
			a.up()
			a.sh(`echo one >$v/file`)
			a.kill()
			if got := a.sh(`echo two >>$v/file; cat $v/file`); got != "one\ntwo" {
				t.Errorf("without a driver: %q", got)
			}
			a.start()
			if cfg.Stage {
				a.must(a.stage()) // finds the mount
			}
			a.must(a.publish(false))
			if s := l.s.Sessions(); len(s) != 1 {
				t.Errorf("sessions: %+v", s)
			}
			a.down()
			l.unused()
		})
	}
}

// TestCutOff cuts a host off while its driver is stopped.
func TestCutOff(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	a.up()
	a.sh(`echo one >$v/file`)
	a.signal(unix.SIGSTOP, "T")
	l.s.CutOff("a")
	a.fails(`echo two >>$v/file`, "Input/output error")
	a.fails(`cat $v/file`, "Input/output error")
	if got := l.s.Attachments(); len(got) != 1 || !got[0].CutOff || got[0].Sessions != 1 {
		t.Errorf("attachments: %+v", got)
	}
	a.signal(unix.SIGCONT, "S")
	a.fails(`echo two >>$v/file`, "Input/output error")
	l.must(a.unpublish())
	l.must(a.unstage())
	l.eventually("no session", func() bool { return len(l.s.Sessions()) == 0 })
	l.code(codes.Unavailable, a.stage())

	l.s.RestoreNode("a")
	l.must(a.stage())
	l.must(a.publish(false))
	if got := a.sh(`echo two >>$v/file; cat $v/file`); got != "one\ntwo" {
		t.Errorf("after the restore: %q", got)
	}
	a.down()
	l.unused()
}

// TestBlock moves a block volume.
func TestBlock(t *testing.T) {
	for name, cfg := range drivers {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a, b := l.host("a", cfg), l.host("b", cfg)
			a.block, b.block = true, true
			a.up()
			a.sh(`mkfs.ext4 -q $v && mkdir $v.fs && mount $v $v.fs && echo hello >$v.fs/file && umount $v.fs`)
			if got := l.s.Attachments(); len(got) != 1 || got[0].Sessions != 1 {
				t.Errorf("attachments: %+v", got)
			}
			a.kill()
			a.start()
			if cfg.Stage {
				a.must(a.stage())
			}
			a.down()
			l.unused()
			b.up()
			if got := b.sh(`mkdir $v.fs && mount $v $v.fs && cat $v.fs/file && umount $v.fs`); got != "hello" {
				t.Errorf("host b reads %q", got)
			}
			b.down()
			l.unused()
			nodes := map[string]bool{}
			for _, e := range l.s.Writes("v") {
				nodes[e.Node] = true
				if e.Name != blockFile || e.Node == "a" && e.Len == 0 {
					t.Errorf("write: %s", e)
				}
			}
			if !nodes["a"] || !nodes["b"] {
				t.Errorf("writes of %v", nodes)
			}
		})
	}
}

// TestBlockDetached ends the attachment of a block volume whose device is in use.
func TestBlockDetached(t *testing.T) {
	l := newLab(t)
	a := l.host("a", full)
	a.block = true
	a.up()
	a.sh(`echo one | dd of=$v oflag=direct conv=sync,notrunc status=none`)
	l.must(a.detach())
	a.fails(`echo two | dd of=$v oflag=direct conv=sync,notrunc status=none`, "Input/output error")
	a.fails(`dd if=$v iflag=direct count=1 status=none`, "Input/output error")
	raw, err := os.ReadFile(l.s.Disks()[0].Image)
	if err != nil || string(raw[:4]) != "one\n" {
		t.Errorf("on the disk: %q, %v", raw[:4], err)
	}
	l.must(a.unpublish())
	l.must(a.unstage())
	l.unused()
}
