package san

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func (g *gate) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return g.change(Event{Op: "create", Name: g.child(in.NodeId, name)}, func() fuse.Status {
		return g.learn(g.RawFileSystem.Create(cancel, in, name, out), in.NodeId, name, &out.EntryOut)
	})
}

func (g *gate) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return g.change(Event{Op: "tmpfile", Name: g.name(in.NodeId)}, func() fuse.Status {
		return g.RawFileSystem.Tmpfile(cancel, in, out)
	})
}

func (g *gate) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	open := func() fuse.Status { return g.RawFileSystem.Open(cancel, in, out) }
	if in.Flags&unix.O_TRUNC != 0 {
		return g.change(Event{Op: "truncate", Name: g.name(in.NodeId)}, open)
	}
	return g.pass(open)
}

// Read copies the data while it holds the gate, so that no read happens later.
func (g *gate) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (data fuse.ReadResult, code fuse.Status) {
	code = g.pass(func() fuse.Status {
		result, code := g.RawFileSystem.Read(cancel, in, buf)
		if !code.Ok() {
			return code
		}

		raw, code := result.Bytes(buf)
		result.Done()
		data = fuse.ReadResultData(raw)
		return code
	})
	return data, code
}

func (g *gate) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.Lseek(cancel, in, out) })
}

func (g *gate) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (n uint32, code fuse.Status) {
	code = g.change(g.written(in, len(data)), func() fuse.Status {
		var code fuse.Status
		n, code = g.RawFileSystem.Write(cancel, in, data)
		return code
	})
	return n, code
}

func (g *gate) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (n uint32, code fuse.Status) {
	size := 0
	for _, part := range data {
		size += len(part)
	}

	code = g.change(g.written(in, size), func() fuse.Status {
		var code fuse.Status
		n, code = g.RawFileSystem.Writev(cancel, in, data)
		return code
	})
	return n, code
}

func (g *gate) written(in *fuse.WriteIn, size int) Event {
	return Event{Op: "write", Name: g.name(in.NodeId), Offset: int64(in.Offset), Len: int64(size)}
}

func (g *gate) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (n uint32, code fuse.Status) {
	op := Event{Op: "copy", Name: g.name(in.NodeIdOut), Offset: int64(in.OffOut), Len: int64(in.Len)}
	code = g.change(op, func() fuse.Status {
		var code fuse.Status
		n, code = g.RawFileSystem.CopyFileRange(cancel, in)
		return code
	})
	return n, code
}

func (g *gate) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	op := Event{Op: "fallocate", Name: g.name(in.NodeId), Offset: int64(in.Offset), Len: int64(in.Length)}
	return g.change(op, func() fuse.Status { return g.RawFileSystem.Fallocate(cancel, in) })
}

func (g *gate) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.Flush(cancel, in) })
}

func (g *gate) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.Fsync(cancel, in) })
}

func (g *gate) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.GetLk(cancel, in, out) })
}

func (g *gate) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.SetLk(cancel, in) })
}

// SetLkw refuses to wait for a lock, because the wait would hold the gate. The kernel of each host
// keeps the locks of its own processes.
func (g *gate) SetLkw(<-chan struct{}, *fuse.LkIn) fuse.Status { return fuse.ENOSYS }
