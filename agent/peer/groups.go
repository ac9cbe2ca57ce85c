package peer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is the maximum number of supplementary groups on Linux (NGROUPS_MAX).
const maxGroups = 65536

// groups returns the peer's supplementary groups. The kernel recorded them when the peer connected
// (SO_PEERGROUPS, Linux 4.13). A lookup by pid would be unsafe, because another process may have
// the same pid by now.
func groups(fd int) []int {
	buf := make([]uint32, 64)
	for {
		size := uint32(len(buf) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno == unix.ERANGE && len(buf) < maxGroups {
			buf = make([]uint32, maxGroups)
			continue
		}
		if errno != 0 {
			return nil
		}

		ids := make([]int, size/4)
		for i := range ids {
			ids[i] = int(buf[i])
		}

		return ids
	}
}
