package mount

import (
	"errors"

	"github.com/volagent/volagent/volmgr/proc"

	"github.com/volagent/volagent/volmgr/volume"
	"golang.org/x/sys/unix"
)

// Gone reports whether the mount that was made at a path is in no place of this mount
// namespace any more. It asks the kernel alone, and waits for no storage. What cannot
// be told is not gone. Before Linux 6.8, where no mount has an id that is never used
// again, it is told by path, file system and root.
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
