package agent

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// leastFree is how much of the data dir's file system should be free: the state database grows by
// some MiB at once, and events are kept beside it.
const leastFree = 32 << 20

// full reports that the file system of the data dir has no room left, before a claim fails for it.
func (a *agent) full() []api.Problem {
	var fs unix.Statfs_t
	if err := unix.Statfs(a.c.DataDir, &fs); err != nil {
		return nil // the state database reports what is wrong there
	}
	free := int64(fs.Bavail) * fs.Frsize
	inodes := fs.Files == 0 || fs.Ffree > 0 // some file systems do not count them
	if free >= leastFree && inodes {
		return nil
	}
	words := fmt.Sprintf("the file system of %s is nearly full: %d KiB are free", a.c.DataDir, free>>10)
	if !inodes {
		words = fmt.Sprintf("the file system of %s has no inode left", a.c.DataDir)
	}
	return []api.Problem{{Subject: "agent", Message: words, Command: volume.Command("df %s", a.c.DataDir)}}
}
