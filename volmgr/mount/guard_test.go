package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestSetGuardLate creates a file in a directory while SetGuard sets the immutable flag.
// Afterwards, either the file exists and is writable, or the creation of the file failed.
func TestSetGuardLate(t *testing.T) {
	dir, h, ctx := mkdir(t, tempDir(t), "d"), newHost(t), context.Background()
	p, err := h.OpenPlace(ctx, dir)
	check(t, err)
	defer p.Close()
	if g, err := p.Guard(ctx); g != GuardOff || err != nil {
		t.Skipf("its file system has no such flag: %q, %v", g, err)
	}
	defer func() { check(t, h.Unguard(ctx, volume.GuardedDir{Path: dir})) }()
	both := 0
	for i := range 2000 {
		file, made := filepath.Join(dir, fmt.Sprint(i)), make(chan error)
		begin := make(chan struct{})
		go func() {
			<-begin
			f, err := os.Create(file)
			if err == nil {
				err = f.Close()
			}
			made <- err
		}()
		close(begin)
		check(t, p.SetGuard(ctx))
		switch err := <-made; {
		case errors.Is(err, unix.EPERM):
		case err != nil:
			t.Fatal(err)
		default:
			both++
			if err := os.Remove(file); err != nil {
				t.Fatalf("round %d: a file was made, and the directory refuses writes: %v", i, err)
			}
		}
		check(t, h.Unguard(ctx, volume.GuardedDir{Path: dir}))
	}
	t.Logf("%d of 2000 files were made", both)
}

// TestSettled checks that Settled fails while a bind mount that exceeded its time limit may still
// be made.
func TestSettled(t *testing.T) {
	h, ctx := boundedHost(t, 100*time.Millisecond), context.Background()
	release := make(chan struct{})
	var hung *HungError
	if err := h.gate.do(ctx, kindChange, "/srv", func() error { <-release; return nil }); !errors.As(err, &hung) {
		t.Fatal(err)
	}
	if err := h.Settled(ctx, "/srv/"); !errors.As(err, &hung) {
		t.Errorf("while it is outstanding: %v", err)
	}
	check(t, h.Settled(ctx, "/elsewhere"))
	close(release)
	await(t, "the answer", func() bool { return h.gate.outstanding() == 0 })
	check(t, h.Settled(ctx, "/srv"))
}

// TestUnguardMoved checks that Unguard finds a renamed directory by its file handle, even below a
// mount. Without file handles, Unguard must return an error that names the directory. Unguard must
// not change another directory at the same path, and must not fail for a removed directory.
func TestUnguardMoved(t *testing.T) {
	h, ctx := newHost(t), context.Background()
	guarded := func(name string) (string, volume.GuardedDir) {
		t.Helper()
		dir := mkdir(t, tempDir(t), name+"/d")
		p, err := h.OpenPlace(ctx, dir)
		check(t, err)
		defer p.Close()
		if g, err := p.Guard(ctx); g != GuardOff || err != nil {
			t.Skipf("its file system has no such flag: %q, %v", g, err)
		}
		check(t, p.SetGuard(ctx))
		d, err := p.Directory(ctx)
		check(t, err)
		if d.Path != dir || d.Inode == 0 || len(d.Handle) == 0 {
			t.Fatalf("it is %+v", d)
		}
		return dir, d
	}
	writable := func(dir string) bool {
		t.Helper()
		err := os.Mkdir(filepath.Join(dir, "x"), 0o700)
		if err == nil {
			check(t, os.Remove(filepath.Join(dir, "x")))
		}
		return err == nil
	}
	dir, d := guarded("a")
	moved := filepath.Dir(dir) + "-moved"
	check(t, os.Rename(filepath.Dir(dir), moved))
	old := newHost(t)
	old.noHandles = true
	if err := old.Unguard(ctx, d); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("inode %d of device %s", d.Inode, d.Device)) {
		t.Errorf("without handles: %v", err)
	}
	check(t, os.MkdirAll(dir, 0o700)) // another directory now has this path
	p, err := h.OpenPlace(ctx, dir)
	check(t, err)
	check(t, p.SetGuard(ctx))
	p.Close()
	check(t, h.Unguard(ctx, d))
	if !writable(moved+"/d") || writable(dir) {
		t.Errorf("writable: the renamed directory %t, the one in its place %t", writable(moved+"/d"), writable(dir))
	}
	check(t, h.Unguard(ctx, volume.GuardedDir{Path: dir}))
	if !writable(dir) {
		t.Error("by its path alone it stays immutable")
	}
	check(t, os.RemoveAll(moved))
	check(t, h.Unguard(ctx, d)) // the directory was removed
}
