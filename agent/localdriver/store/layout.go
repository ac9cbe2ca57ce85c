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
// draws them.
const (
	DirVolumes   = "volumes"
	DirSnapshots = "snapshots"
	DirGroups    = "groups"
	DirFrozen    = "frozen"
	DirTmp       = "tmp"
	DirTrash     = "trash"

	MetaFile      = "volume.json"
	FreshSuffix   = ".new"      // suffix of a new file, until a rename makes it replace the old one
	ExclusiveFile = "exclusive" // the volume was last published for one target alone
	DataDir       = "data"
	ImageFile     = "image"

	MetaVersion = 1
)

// VolumePrefix begins the id of a volume. The rest of an id is random.
const (
	VolumePrefix = "vol-"
	idAlphabet   = "abcdefghijklmnopqrstuvwxyz234567"
	idRandom     = 16 // characters, 5 bits each
)

// NewID returns a new id for a volume.
func NewID() string { return NewIDOf(VolumePrefix) }

// NewIDOf returns a new id with the given prefix.
func NewIDOf(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:idRandom])
}

// ValidID reports whether id has the form of the driver's own volume ids. No other id may become
// part of a path.
func ValidID(id string) bool { return ValidIDOf(VolumePrefix, id) }

// ValidIDOf reports whether id has the form of an id with this prefix.
func ValidIDOf(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == idRandom && strings.Trim(rest, idAlphabet) == ""
}

// validAnyID reports whether id has the form of a volume, snapshot or group id.
func validAnyID(id string) bool {
	return ValidID(id) || ValidIDOf(SnapPrefix, id) || ValidIDOf(GroupPrefix, id)
}

// DataIn returns the root of a directory volume that is being made in dir.
func DataIn(dir string) string { return filepath.Join(dir, DataDir) }

// SyncDir waits until the entries of a directory are on disk.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// MakeDirectory makes the data directory of a directory volume. Like the root of a new filesystem,
// it belongs to the user who runs the driver (root), and all users may enter it. The 0700
// directories above it keep other users out until it is mounted elsewhere.
func MakeDirectory(dir string) error {
	path := DataIn(dir)
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o755); err != nil { // regardless of the umask
		return err
	}
	return SyncDir(path)
}
