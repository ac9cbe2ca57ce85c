package mount

import (
	"context"
	"fmt"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// One look costs the same however many mounts there are; a parse does not.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{10, 1000} {
		dir := tempDir(b)
		for i := range n {
			mountFS(b, "tmpfs", "t", mkdir(b, dir, fmt.Sprint(i)), 0, "")
		}
		h, ctx := newHost(b), context.Background()
		at := fmt.Sprintf("%s/%d", dir, n/2)
		b.Run(fmt.Sprintf("mount/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if s := h.Look(ctx, at); s.Seen != volume.SeenMount {
					b.Fatal(s)
				}
			}
		})
		b.Run(fmt.Sprintf("nothing/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if s := h.Look(ctx, dir); s.Seen != volume.SeenNothing {
					b.Fatal(s)
				}
			}
		})
		b.Run(fmt.Sprintf("parse/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if t, err := h.Under(at); err != nil || len(t) != 1 {
					b.Fatal(len(t), err)
				}
			}
		})
		detachUnder(b, dir)
	}
}

func BenchmarkUnder(b *testing.B) {
	dir := tempDir(b)
	for i := range 1000 {
		mountFS(b, "tmpfs", "t", mkdir(b, dir, fmt.Sprint(i)), 0, "")
	}
	h := newHost(b)
	for b.Loop() {
		if e, err := h.Under(dir); err != nil || len(e) != 1000 {
			b.Fatal(len(e), err)
		}
	}
}
