package san

import (
	"path"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// gate is the file system of a session. Every operation holds the lock of the attachment's gate
// while it uses the disk. Operations that only end the use of a file pass a closed gate, too.
type gate struct {
	fuse.RawFileSystem
	*session
}

// pass performs an operation that changes nothing.
func (g *gate) pass(do func() fuse.Status) fuse.Status {
	g.dawdle(g.attachment.node)
	g.attachment.gate.RLock()
	defer g.attachment.gate.RUnlock()
	if !g.attachment.open {
		return fuse.EIO
	}
	return do()
}

// change performs an operation that changes the disk. It records the change if the operation
// succeeds, and that the gate refused the change.
func (g *gate) change(op Event, do func() fuse.Status) fuse.Status {
	a := g.attachment
	g.dawdle(a.node)
	a.gate.RLock()
	defer a.gate.RUnlock()

	switch {
	case !a.open:
		g.record(KindRefused, op)
		return fuse.EIO
	case a.readOnly:
		return fuse.EROFS
	}

	code := do()
	if code.Ok() {
		g.record(KindWrite, op)
	}

	return code
}

func (g *gate) record(kind Kind, op Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.attachment.event(cause{})
	e.Kind, e.Op, e.Name, e.Offset, e.Len = kind, op.Op, op.Name, op.Offset, op.Len
	g.add(e)
	if kind == KindWrite {
		g.judgeWrite(g.attachment, e)
	}
}

// name returns the path of a file in the volume. It is empty for the root.
func (g *gate) name(id uint64) string {
	name, ok := g.names.Load(id)
	if !ok {
		return ""
	}
	return name.(string)
}

func (g *gate) child(parent uint64, name string) string { return path.Join(g.name(parent), name) }

// learn remembers the path of a file that an operation has looked up.
func (g *gate) learn(code fuse.Status, parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	if code.Ok() {
		g.names.Store(out.NodeId, g.child(parent, name))
	}
	return code
}

// Lookup finds the only file of a block volume under every name. See loopFile.
func (g *gate) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if g.block {
		name = blockFile
	}
	return g.pass(func() fuse.Status {
		return g.learn(g.RawFileSystem.Lookup(cancel, h, name, out), h.NodeId, name, out)
	})
}

func (g *gate) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.GetAttr(cancel, in, out) })
}

func (g *gate) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.Statx(cancel, in, out) })
}

func (g *gate) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	op := Event{Op: "setattr", Name: g.name(in.NodeId)}
	if size, ok := in.GetSize(); ok {
		op.Op, op.Len = "truncate", int64(size)
	}
	return g.change(op, func() fuse.Status { return g.RawFileSystem.SetAttr(cancel, in, out) })
}

func (g *gate) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return g.change(Event{Op: "mknod", Name: g.child(in.NodeId, name)}, func() fuse.Status {
		return g.learn(g.RawFileSystem.Mknod(cancel, in, name, out), in.NodeId, name, out)
	})
}

func (g *gate) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return g.change(Event{Op: "mkdir", Name: g.child(in.NodeId, name)}, func() fuse.Status {
		return g.learn(g.RawFileSystem.Mkdir(cancel, in, name, out), in.NodeId, name, out)
	})
}

func (g *gate) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return g.change(Event{Op: "unlink", Name: g.child(h.NodeId, name)}, func() fuse.Status {
		return g.RawFileSystem.Unlink(cancel, h, name)
	})
}

func (g *gate) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return g.change(Event{Op: "rmdir", Name: g.child(h.NodeId, name)}, func() fuse.Status {
		return g.RawFileSystem.Rmdir(cancel, h, name)
	})
}

func (g *gate) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return g.change(Event{Op: "rename", Name: g.child(in.Newdir, to)}, func() fuse.Status {
		return g.RawFileSystem.Rename(cancel, in, from, to)
	})
}

func (g *gate) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return g.change(Event{Op: "link", Name: g.child(in.NodeId, name)}, func() fuse.Status {
		return g.learn(g.RawFileSystem.Link(cancel, in, name, out), in.NodeId, name, out)
	})
}

func (g *gate) Symlink(cancel <-chan struct{}, h *fuse.InHeader, to, name string, out *fuse.EntryOut) fuse.Status {
	return g.change(Event{Op: "symlink", Name: g.child(h.NodeId, name)}, func() fuse.Status {
		return g.learn(g.RawFileSystem.Symlink(cancel, h, to, name, out), h.NodeId, name, out)
	})
}

func (g *gate) Readlink(cancel <-chan struct{}, h *fuse.InHeader) (out []byte, code fuse.Status) {
	code = g.pass(func() fuse.Status {
		var code fuse.Status
		out, code = g.RawFileSystem.Readlink(cancel, h)
		return code
	})
	return out, code
}

func (g *gate) Access(cancel <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.Access(cancel, in) })
}

func (g *gate) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, attr string, dest []byte) (size uint32, code fuse.Status) {
	code = g.pass(func() fuse.Status {
		var code fuse.Status
		size, code = g.RawFileSystem.GetXAttr(cancel, h, attr, dest)
		return code
	})
	return size, code
}

func (g *gate) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (size uint32, code fuse.Status) {
	code = g.pass(func() fuse.Status {
		var code fuse.Status
		size, code = g.RawFileSystem.ListXAttr(cancel, h, dest)
		return code
	})
	return size, code
}

func (g *gate) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	return g.change(Event{Op: "setxattr", Name: g.name(in.NodeId)}, func() fuse.Status {
		return g.RawFileSystem.SetXAttr(cancel, in, attr, data)
	})
}

func (g *gate) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, attr string) fuse.Status {
	return g.change(Event{Op: "removexattr", Name: g.name(h.NodeId)}, func() fuse.Status {
		return g.RawFileSystem.RemoveXAttr(cancel, h, attr)
	})
}

func (g *gate) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.OpenDir(cancel, in, out) })
}

func (g *gate) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.ReadDir(cancel, in, out) })
}

func (g *gate) ReadDirPlus(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status {
	return fuse.ENOSYS
}

func (g *gate) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return g.pass(func() fuse.Status { return g.RawFileSystem.FsyncDir(cancel, in) })
}

// StatFs reports the size that the node knows, and no used space.
func (g *gate) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return g.pass(func() fuse.Status {
		code := g.RawFileSystem.StatFs(cancel, in, out)
		g.mu.Lock()
		defer g.mu.Unlock()
		out.Bsize, out.Frsize = 4096, 4096
		out.Blocks = uint64(g.size) / 4096
		out.Bfree, out.Bavail = out.Blocks, out.Blocks
		return code
	})
}

// Ioctl refuses all requests, because some of them change files.
func (g *gate) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return fuse.Status(unix.ENOTTY)
}
