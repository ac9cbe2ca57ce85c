package dockervol

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/untrusted"
)

const (
	// volumeDB is the path of dockerd's own database of volumes, below its data root.
	volumeDB = "/volumes/metadata.db"

	// maxFiles limits the number of open files of a process that are checked. Dockerd opens the
	// database when it starts, so its descriptor is among the first.
	maxFiles = 4096

	// maxSubIDs limits the size of /etc/subuid and /etc/subgid, in bytes.
	maxSubIDs = 1 << 20
)

// RemappedRoot returns the host's uid and gid of root in the containers of a dockerd with
// userns-remap. They are empty for any other process, and if they cannot be determined.
//
// Dockerd does not tell these ids to a volume plugin. But with userns-remap it has a data root of
// its own, DIR/UID.GID, and keeps its volume database open there while it runs. The open file of
// the process therefore shows the ids in use. The command line and daemon.json do not show them.
// They only name a user, and the file may have changed since dockerd read it. Asking dockerd is not
// safe, because dockerd is waiting for the plugin's answer and may hold locks.
//
// A data root may have such a name by chance (/srv/docker/24.0). Both ids must therefore begin a
// range in /etc/subuid and /etc/subgid as dockerd sees them, because dockerd takes them from there.
func RemappedRoot(pid int) (uid, gid string) { return remappedRoot("/proc", pid) }

func remappedRoot(proc string, pid int) (uid, gid string) {
	if pid <= 0 {
		return "", ""
	}

	dir := filepath.Join(proc, strconv.Itoa(pid))
	files, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return "", ""
	}
	defer files.Close()                      //nolint:errcheck // it was only read
	names, _ := files.Readdirnames(maxFiles) // the names read before an error count

	for _, name := range names {
		path, err := os.Readlink(filepath.Join(dir, "fd", name))
		if err != nil {
			continue // closed in the meantime
		}

		root, is := strings.CutSuffix(path, volumeDB)
		if !is {
			continue
		}

		uid, gid, is := strings.Cut(filepath.Base(root), ".")
		if is && beginsRange(filepath.Join(dir, "root/etc/subuid"), uid) && beginsRange(filepath.Join(dir, "root/etc/subgid"), gid) {
			return uid, gid
		}
	}

	return "", ""
}

// beginsRange reports whether a file in the form of subuid(5) has a range that begins with an id.
// The id must not be that of the host's root.
func beginsRange(file, id string) bool {
	first, err := strconv.ParseUint(id, 10, 32)
	if err != nil || first == 0 || first == math.MaxUint32 { // the last id belongs to no user
		return false
	}

	raw, err := untrusted.ReadFile(file, maxSubIDs)
	if err != nil {
		return false
	}

	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		// name:first:count
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(fields) == 3 && fields[1] == id {
			return true
		}
	}

	return false
}
