package mount

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// spent returns the processor time that this process has used so far.
func spent(b *testing.B) int64 {
	var u unix.Rusage
	check(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkLookCPU measures the processor time of one Look (cpu-ns/op). The cases are a bind mount,
// a path without a mount, and two bind mounts in parallel. Each case runs with one caller and with
// 32.
func BenchmarkLookCPU(b *testing.B) {
	const callers = 32
	dir := tempDir(b)
	src := mkdir(b, dir, "local-driver/volumes/9f86d081884c7d65")
	var binds, missing, pairs [callers][]string
	for i := range callers {
		for n := range 2 {
			at := mkdir(b, dir, fmt.Sprintf("volumes/9f86d081884c7d65/targets/%d-%d", i, n))
			bindAt(b, src, at)
			pairs[i] = append(pairs[i], at)
		}
		binds[i] = pairs[i][:1]
		missing[i] = []string{pairs[i][0] + "-missing"}
	}
	h, ctx := newHost(b), context.Background()
	look := func(b *testing.B, paths []string, want volume.Seen) {
		if len(paths) == 1 {
			if s := h.Look(ctx, paths[0]); s.Seen != want {
				b.Error(s)
			}
			return
		}
		for _, s := range h.LookAll(ctx, paths, nil) {
			if s.Seen != want {
				b.Error(s)
			}
		}
	}
	for _, bm := range []struct {
		name  string
		paths [callers][]string
		want  volume.Seen
	}{
		{"mount", binds, volume.SeenMount},
		{"nothing", missing, volume.SeenNothing},
		{"two", pairs, volume.SeenMount},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			from := spent(b)
			for b.Loop() {
				look(b, bm.paths[0], bm.want)
			}
			b.ReportMetric(float64(spent(b)-from)/float64(b.N), "cpu-ns/op")
		})
		b.Run(bm.name+"/busy", func(b *testing.B) {
			var caller atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(callers / 2)
			from := spent(b)
			b.RunParallel(func(pb *testing.PB) {
				paths := bm.paths[caller.Add(1)%callers]
				for pb.Next() {
					look(b, paths, bm.want)
				}
			})
			b.ReportMetric(float64(spent(b)-from)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkLook shows that the cost of Look does not depend on the number of mounts, while the cost
// of parsing the mount table does.
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

// BenchmarkGone measures one call of Gone. The agent makes this call for each watched mount when
// the mount table changes.
func BenchmarkGone(b *testing.B) {
	dir := b.TempDir()
	h, err := New()
	check(b, err)
	src, dst := mkdir(b, dir, "src"), mkdir(b, dir, "dst")
	s, err := attachAt(h, src, dst, Options{})
	check(b, err)
	defer func() { check(b, h.Unmount(b.Context(), dst, Plain)) }()
	for b.Loop() {
		if h.Gone(s.Identity, dst) {
			b.Fatal("it is gone")
		}
	}
}
