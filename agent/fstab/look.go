package fstab

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// LookAt examines a directory in the mount namespace of this process. LookAt blocks if the storage
// hangs, so the caller must set a time limit.
func LookAt(dir string) Spot {
	mounts, err := proc.ReadMounts(proc.OwnMounts, nil, func(m *proc.Mount) (skip, stop bool) {
		is := m.Mountpoint == dir
		return !is, is
	})
	switch {
	case err != nil:
		return Spot{Fault: err.Error()}
	case len(mounts) > 0:
		return Spot{Mounted: true}
	}

	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Spot{}
	case err != nil:
		return Spot{Fault: err.Error()}
	case info.Mode().IsRegular():
		return Spot{Kind: "file"}
	case !info.IsDir():
		return Spot{Kind: "other"}
	}

	d, err := os.Open(dir)
	if err != nil {
		return Spot{Kind: "directory", Fault: err.Error()}
	}
	defer d.Close() //nolint:errcheck // it was only read

	names, err := d.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return Spot{Kind: "directory", Fault: err.Error()}
	}

	return Spot{Kind: "directory", Holds: Some(names)}
}

// most is the maximum number of names that Some lists.
const most = 3

// Some formats the first few names of a directory for messages.
func Some(names []string) string {
	var b strings.Builder
	for i, n := range names {
		switch {
		case i == most:
			b.WriteString(" and more")
			return b.String()
		case i > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", n)
	}

	return b.String()
}
