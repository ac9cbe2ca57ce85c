package fstab

import (
	"cmp"
	"errors"
	"strings"
)

// Files names the files that Read reads.
type Files struct {
	Fstab string
	// Units lists the directories that contain unit files. If two directories contain a unit of the
	// same name, the unit in the first directory is used.
	Units []string
}

// System returns the files of this host. Like mount(8), it uses the path in LIBMOUNT_FSTAB as
// fstab. Like systemd(1), it uses the directories in SYSTEMD_UNIT_PATH. If this variable ends with
// ":", System adds the default directories.
func System(getenv func(string) string) Files {
	f := Files{Fstab: cmp.Or(getenv("LIBMOUNT_FSTAB"), DefaultFile), Units: unitDirs}
	if path := getenv("SYSTEMD_UNIT_PATH"); path != "" {
		own, more := strings.CutSuffix(path, ":")
		f.Units = strings.Split(own, ":")
		if more {
			f.Units = append(f.Units, unitDirs...)
		}
	}

	return f
}

// Read returns all entries, with the entries of fstab first. If it cannot read some files, it
// returns the entries of the other files, and an error that names the unreadable files. A missing
// file is not an error.
func Read(f Files) ([]Entry, error) {
	entries, err := readTable(f.Fstab)
	units, uerr := readUnits(f.Units)
	return append(entries, units...), errors.Join(err, uerr)
}
