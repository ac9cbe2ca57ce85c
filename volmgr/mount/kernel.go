package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// reader reads mounts from the kernel. Its calls have no time limit, so a Host bounds those that
// can wait for storage.
type reader struct {
	procfs
	sysfs

	namespace uint64
	boot      string

	// Tests set these fields to simulate an older kernel.
	noStatmount bool // a kernel before 6.8, or a filter that refuses statmount
	noMountRoot bool // a kernel before 5.8
}

// changer changes mounts and guards. Like those of reader, its calls have no time limit.
type changer struct {
	reader

	// Tests set these fields to simulate an older kernel.
	noSetattr bool // a kernel before 5.12
	noHandles bool // a filter refuses name_to_handle_at
}

// Namespace returns the inode number of the mount namespace.
func (r *reader) Namespace() uint64 { return r.namespace }

// Boot returns the id that the kernel gave to this boot.
func (r *reader) Boot() string { return r.boot }

// ownSpace returns the agent's own mount namespace in the form of the links in /proc.
func (r *reader) ownSpace() string { return fmt.Sprintf("mnt:[%d]", r.namespace) }

// Gone reports whether a mount that was once at the path at is no longer mounted anywhere in this
// mount namespace. It asks only the kernel and does not wait for storage. If the answer is unknown,
// it returns false. Before Linux 6.8 the kernel reuses mount ids. There Gone compares the path, the
// file system and its root instead.
func (r *reader) Gone(m volume.MountIdentity, at string) bool {
	switch {
	case m.Boot != r.boot:
		return true
	case m.Namespace != r.namespace:
		return false
	case m.ID != 0 && !r.noStatmount:
		var room [usualStat]byte
		_, err := statmount(m.ID, statmountMntBasic, &room)
		if !errors.Is(err, errNoStatmount) {
			return errors.Is(err, unix.ENOENT)
		}
	}

	found := false
	_, err := r.table(func(i *proc.Mount) (bool, bool) {
		p := r.fromInfo(i)
		p.id.ID = m.ID
		found = found || p.id == m && p.at == at
		return true, found
	})

	return err == nil && !found
}
