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
	// volumeDB is the database of dockerd's own list of volumes, below its data root.
	volumeDB = "/volumes/metadata.db"
	// maxFiles bounds how many open files of a process are looked at. Dockerd opens the
	// database when it starts, so its descriptor is among the first.
	maxFiles = 4096
	// maxSubIDs bounds /etc/subuid and /etc/subgid, in bytes.
	maxSubIDs = 1 << 20
)

// RemappedRoot returns the ids of the host that root has in the containers of a dockerd with
// userns-remap. They are empty for any other process, and where they cannot be told.
//
// Dockerd does not tell a volume plugin. But with userns-remap it works in a data root of its
// own, DIR/UID.GID, and holds the database of its volumes open there as long as it runs. So the
// process itself shows which ids it uses. Its command line and daemon.json do not: they name a
// user whose ranges are to be found, and the file may have changed since dockerd read it. To ask
// dockerd, which waits for an answer, would depend on how it locks.
//
// A data root may have such a name by chance (/srv/docker/24.0). So both ids must begin a range
// of /etc/subuid and /etc/subgid as dockerd sees them, which is where it has them from.
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
	names, _ := files.Readdirnames(maxFiles) // those before an error count

	for _, name := range names {
		path, err := os.Readlink(filepath.Join(dir, "fd", name))
		if err != nil {
			continue // closed by now
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

// beginsRange reports whether a file in the form of subuid(5) has a range that begins with an
// id, which is not that of the host's root.
func beginsRange(file, id string) bool {
	first, err := strconv.ParseUint(id, 10, 32)
	if err != nil || first == 0 || first == math.MaxUint32 { // the last one is nobody's
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
