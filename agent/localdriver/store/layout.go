package store

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// These are the prefixes of ids, and the files that describe a snapshot or group.
const (
	SnapPrefix  = "snap-"
	GroupPrefix = "grp-"

	SnapFile  = "snapshot.json"
	groupFile = "group.json"
)

// These are the directories and files of a state directory. The package comment of localdriver
// shows them in a tree.
const (
	DirVolumes   = "volumes"
	DirSnapshots = "snapshots"
	DirGroups    = "groups"
	DirFrozen    = "frozen"
	DirTmp       = "tmp"
	DirTrash     = "trash"

	MetaFile    = "volume.json"
	FreshSuffix = ".new" // suffix of a new file that will replace the old file by a rename
	// exists if the volume was last published with a mode that allows only one target
	ExclusiveFile = "exclusive"
	DataDir       = "data"
	ImageFile     = "image"

	MetaVersion = 1
)

// VolumePrefix is the start of each volume's id. The other characters of an id are random.
const (
	VolumePrefix = "vol-"
	idAlphabet   = "abcdefghijklmnopqrstuvwxyz234567"
	idRandom     = 16 // number of random characters, 5 bits each
)

// NewID returns a new id for a volume.
func NewID() string { return NewIDOf(VolumePrefix) }

// NewIDOf returns a new id with the given prefix.
func NewIDOf(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:idRandom])
}

// ValidID reports whether id has the form of the driver's own volume ids. An id without this form
// must not become part of a path.
func ValidID(id string) bool { return ValidIDOf(VolumePrefix, id) }

// ValidIDOf reports whether id has the form of the driver's own ids with the given prefix.
func ValidIDOf(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == idRandom && strings.Trim(rest, idAlphabet) == ""
}

// validAnyID reports whether id has the form of a volume, snapshot or group id.
func validAnyID(id string) bool {
	return ValidID(id) || ValidIDOf(SnapPrefix, id) || ValidIDOf(GroupPrefix, id)
}

// DataIn returns the path of the data directory of a directory volume that is being made in dir.
func DataIn(dir string) string { return filepath.Join(dir, DataDir) }

// SyncDir waits until the entries of a directory are on disk.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// MakeDirectory makes the data directory of a directory volume. The directory belongs to the user
// who runs the driver (root), and all users may enter it, like the root directory of a new
// filesystem. Until the volume is mounted at another path, the directories above it, which have
// mode 0700, keep other users out.
func MakeDirectory(dir string) error {
	path := DataIn(dir)
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	// set the mode again, because Mkdir applies the umask
	if err := os.Chmod(path, 0o755); err != nil {
		return err
	}
	return SyncDir(path)
}
