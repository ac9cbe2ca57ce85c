package agent

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
)

// leastFree is the free space, in bytes, that the data dir's file system should have. The state
// database grows by some MiB at once, and the events are stored beside it.
const leastFree = 32 << 20

// full reports that the data dir's file system is nearly full, before a claim fails because of
// that.
func (a *agent) full() []api.Problem {
	var fs unix.Statfs_t
	if err := unix.Statfs(a.c.DataDir, &fs); err != nil {
		return nil // the state database reports problems of the disk
	}

	free := int64(fs.Bavail) * fs.Frsize
	inodes := fs.Files == 0 || fs.Ffree > 0 // some file systems do not count inodes
	if free >= leastFree && inodes {
		return nil
	}

	words := fmt.Sprintf("the file system of %s is nearly full: %d KiB are free", a.c.DataDir, free>>10)
	if !inodes {
		words = fmt.Sprintf("the file system of %s has no inode left", a.c.DataDir)
	}

	return []api.Problem{{Subject: "agent", Message: words, Command: suggest.Command("df %s", a.c.DataDir)}}
}
