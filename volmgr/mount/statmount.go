package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These values come from include/uapi/linux/mount.h, because x/sys does not define them.
const (
	statmountSBBasic  = 0x1
	statmountMntBasic = 0x2
	statmountMntRoot  = 0x8
	statmountMntPoint = 0x10
	statmountFSType   = 0x20
	statmountSBSource = 0x200 // this flag needs Linux 6.13
	listmountRoot     = ^uint64(0)
)

// The constants whose names begin with "at" are the offsets of fields in struct statmount. The
// field of a string contains the position of the string, relative to strAt.
const (
	atMask      = 8
	atDevMajor  = 16
	atDevMinor  = 20
	atSBFlags   = 32
	atFSType    = 36
	atMntID     = 40
	atMntIDOld  = 56
	atMntAttr   = 64
	atMntShare  = 72 // field mnt_propagation
	atMntRoot   = 104
	atMntPoint  = 108
	atSBSource  = 124
	strAt       = 512
	usualStat   = 1 << 10
	largestStat = 1 << 17 // enough for three paths of 4 KiB
)

// errNoStatmount reports that the kernel does not support statmount, or does not provide all
// requested data.
var errNoStatmount = errors.New("no statmount")

// mountRequest is struct mnt_id_req, version 0.
type mountRequest struct {
	size  uint32
	spare uint32
	id    uint64
	param uint64
}

// statmountReply is a struct statmount. Its methods read fields by their offsets.
type statmountReply []byte

func (r statmountReply) u32(at int) uint32 { return binary.NativeEndian.Uint32(r[at:]) }
func (r statmountReply) u64(at int) uint64 { return binary.NativeEndian.Uint64(r[at:]) }

// str returns a string field of the reply without copying it.
func (r statmountReply) str(at int) []byte {
	from := strAt + int(r.u32(at))
	if from >= len(r) {
		return nil
	}

	s := r[from:]
	if end := bytes.IndexByte(s, 0); end >= 0 {
		s = s[:end]
	}
	return s
}

// statmount requests data about the mount with the given unique id. The mask selects the data. It
// fails with ENOENT if there is no such mount in this namespace, and with errNoStatmount if the
// kernel does not provide all of the data. If the reply fits into room, statmount stores the reply
// there.
func statmount(id, mask uint64, room *[usualStat]byte) (statmountReply, error) {
	req := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), id: id, param: mask}
	buf := statmountReply(room[:])
	for ; len(buf) <= largestStat; buf = make(statmountReply, 4*len(buf)) {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
		switch errno {
		case 0:
			if buf.u64(atMask)&mask != mask {
				return nil, errNoStatmount
			}
			return buf, nil
		case unix.EOVERFLOW, unix.EINTR:
			continue
		case unix.ENOENT:
			return nil, errno
		default:
			return nil, errNoStatmount
		}
	}

	return nil, errNoStatmount
}

// searchUniqueID returns the unique id of the mount with the given id in the mount table, or 0 if
// the kernel does not provide unique ids. It checks every mount in turn.
func searchUniqueID(old int) uint64 {
	var after uint64
	var room [usualStat]byte
	for {
		var ids [256]uint64
		req := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), id: listmountRoot, param: after}
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
		if errno != 0 || n == 0 {
			return 0
		}

		for _, id := range ids[:n] {
			reply, err := statmount(id, statmountMntBasic, &room)
			if err == nil && int(reply.u32(atMntIDOld)) == old {
				return id
			}
		}

		after = ids[n-1]
	}
}
