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
	// volumeDB is the path of dockerd's volume database, below the data root of dockerd.
	volumeDB = "/volumes/metadata.db"

	// maxFiles limits how many open files of a process are checked. Dockerd opens the database when
	// it starts, so the database is among its first files.
	maxFiles = 4096

	// maxSubIDs limits the size of /etc/subuid and /etc/subgid, in bytes.
	maxSubIDs = 1 << 20
)

// RemappedRoot returns the uid and gid that root in a container has on the host, for a dockerd with
// userns-remap. It returns empty texts for every other process, and if it cannot determine the ids.
//
// Dockerd does not send these ids to a volume plugin. With userns-remap, however, dockerd has a
// separate data root DIR/UID.GID, and keeps its volume database open there while it runs. The path
// of this open file therefore contains the current ids. The command line and daemon.json contain
// only a user name, and the file may have changed since dockerd read it. A call to dockerd is not
// safe, because dockerd waits for the plugin's answer and may hold locks.
//
// The data root may also have such a name by chance, such as /srv/docker/24.0. RemappedRoot
// therefore checks that both ids begin a range in /etc/subuid and /etc/subgid, because dockerd
// takes them from these files. It reads the files as dockerd sees them.
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
	defer files.Close()                      //nolint:errcheck // the file was only read
	names, _ := files.Readdirnames(maxFiles) // if an error occurs, use the names that were read before it

	for _, name := range names {
		path, err := os.Readlink(filepath.Join(dir, "fd", name))
		if err != nil {
			continue // the process has closed the file meanwhile
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

// beginsRange reports whether a range in the file begins with the given id. The file has the format
// of subuid(5). The id must not be the id of root on the host.
func beginsRange(file, id string) bool {
	first, err := strconv.ParseUint(id, 10, 32)
	if err != nil || first == 0 || first == math.MaxUint32 { // the largest id belongs to no user
		return false
	}

	raw, err := untrusted.ReadFile(file, maxSubIDs)
	if err != nil {
		return false
	}

	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		// The fields are name:first:count.
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(fields) == 3 && fields[1] == id {
			return true
		}
	}

	return false
}
