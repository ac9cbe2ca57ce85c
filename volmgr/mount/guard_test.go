package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSetGuardLate: what is written to a directory while it is about to refuse writes is
// there, and can be written to; or it cannot be made.
func TestSetGuardLate(t *testing.T) {
	dir, h, ctx := mkdir(t, tempDir(t), "d"), newHost(t), context.Background()
	p, err := h.OpenPlace(ctx, dir)
	check(t, err)
	defer p.Close()
	if g, err := p.Guard(ctx); g != GuardOff || err != nil {
		t.Skipf("its file system has no such flag: %q, %v", g, err)
	}
	defer func() { check(t, h.Unguard(ctx, dir)) }()
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
		check(t, h.Unguard(ctx, dir))
	}
	t.Logf("%d of 2000 files were made", both)
}

// TestSettled: while a bind is still to come that was given up, nobody may take its
// directory for bare.
func TestSettled(t *testing.T) {
	h, ctx := newHost(t, WithBound(100*time.Millisecond)), context.Background()
	release := make(chan struct{})
	var hung *HungError
	if _, err := bounded(ctx, h, kindChange, "/srv", h.bound, func() (struct{}, error) { <-release; return struct{}{}, nil }); !errors.As(err, &hung) {
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
