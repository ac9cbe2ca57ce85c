package fstab

import (
	"cmp"
	"errors"
	"strings"
)

// Files names the files that Read reads.
type Files struct {
	Fstab string
	// Units lists the directories of unit files. If two directories have a unit of the same name,
	// the first one counts.
	Units []string
}

// System returns the files of this host. Like mount(8), it uses the table that LIBMOUNT_FSTAB
// names. Like systemd(1), it uses the directories that SYSTEMD_UNIT_PATH names; a ":" at the end of
// the variable adds the default directories.
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

// Read returns all entries, with those of fstab first. If some files cannot be read, it returns an
// error that names them, together with the entries of the other files. A missing file is no error.
func Read(f Files) ([]Entry, error) {
	entries, err := readTable(f.Fstab)
	units, uerr := readUnits(f.Units)
	return append(entries, units...), errors.Join(err, uerr)
}
