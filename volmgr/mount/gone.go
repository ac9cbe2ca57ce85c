package mount

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Gone reports whether a mount that was once at the path at is no longer mounted anywhere in this
// mount namespace. It asks only the kernel and does not wait for storage. If the answer is unknown,
// it returns false. Before Linux 6.8 the kernel reuses mount ids. There Gone compares the path, the
// file system and its root instead.
func (h *Host) Gone(m volume.MountIdentity, at string) bool {
	switch {
	case m.Boot != h.boot:
		return true
	case m.Namespace != h.namespace:
		return false
	case m.ID != 0 && !h.noStatmount:
		var room [usualStat]byte
		_, err := statmount(m.ID, statmountMntBasic, &room)
		if !errors.Is(err, errNoStatmount) {
			return errors.Is(err, unix.ENOENT)
		}
	}

	found := false
	_, err := h.table(func(i *proc.Mount) (bool, bool) {
		p := h.fromInfo(i)
		p.id.ID = m.ID
		found = found || p.id == m && p.at == at
		return true, found
	})

	return err == nil && !found
}
