package mount

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// entering is the set of capabilities that let a process enter every directory (capabilities(7)).
const entering = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH

// barred reports whether a process may not enter a directory of the agent with mode 0700. The
// parameter proc is a descriptor of the process's directory in procfs. If the process may not
// enter, barred also returns the user of the process. The kernel could answer exactly, but only to
// a caller that may change its own user. The agent may not change its user, so barred applies the
// rule of path_resolution(7) itself.
func (p procfs) barred(proc int) (user uint32, is bool, err error) {
	status, err := readAt(proc, "status")
	if err != nil {
		return 0, false, err
	}

	owner := uint32(os.Geteuid()) //nolint:gosec // a user id
	uid, caps, err := credentials(status)
	if err != nil || uid == owner {
		return 0, false, err
	}
	if caps&entering != 0 {
		ruled, err := p.rules(proc, owner)
		if err != nil || ruled {
			return 0, false, err
		}
	}

	return uid, true, nil
}

// rules reports whether the capabilities of a process apply to files that belong to the user with
// the id owner. Capabilities in another user namespace apply only to files of users that are mapped
// into that namespace.
func (p procfs) rules(proc int, owner uint32) (bool, error) {
	theirs, err := readlinkat(proc, "ns/user")
	if err != nil {
		return false, err
	}

	ours, err := os.Readlink(string(p) + "/self/ns/user")
	if err != nil || ours == theirs {
		return err == nil, err
	}

	text, err := readAt(proc, "uid_map")
	if err != nil {
		return false, err
	}

	for line := range strings.Lines(text) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			return false, fmt.Errorf("cannot read uid_map: %w", err)
		}
		if uint64(owner) >= outside && uint64(owner)-outside < count {
			return true, nil
		}
	}

	return false, nil
}

// credentials parses the file system user and the effective capabilities from the text of
// /proc/PID/status.
func credentials(status string) (uid uint32, caps uint64, err error) {
	var haveUID, haveCaps bool
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case name == "Uid" && len(fields) == 4: // real, effective, saved, file system
			n, err := strconv.ParseUint(fields[3], 10, 32)
			if err != nil {
				return 0, 0, err
			}
			uid, haveUID = uint32(n), true
		case name == "CapEff" && len(fields) == 1:
			if caps, err = strconv.ParseUint(fields[0], 16, 64); err != nil {
				return 0, 0, err
			}
			haveCaps = true
		}
	}

	if !haveUID || !haveCaps {
		return 0, 0, errors.New("/proc does not show the user and the capabilities of the process")
	}
	return uid, caps, nil
}
