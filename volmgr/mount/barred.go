package mount

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// enterCapabilities is the set of capabilities that let a process enter every directory
// (capabilities(7)).
const enterCapabilities = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH

// barred reports whether a process is not allowed to enter a directory of the agent with mode 0700.
// The parameter proc is a descriptor of the process's directory in procfs. If the process may not
// enter, barred also returns the user of the process. The agent may not change its own user to let
// the kernel decide. Therefore barred applies the rule of path_resolution(7) itself.
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
	if caps&enterCapabilities != 0 {
		ruled, err := p.capabilitiesApply(proc, owner)
		if err != nil || ruled {
			return 0, false, err
		}
	}

	return uid, true, nil
}

// capabilitiesApply reports whether the capabilities of a process apply to files of the user with
// the id owner. The capabilities of a process in another user namespace apply only to files of
// users that have an id in that namespace.
func (p procfs) capabilitiesApply(proc int, owner uint32) (bool, error) {
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

// credentials parses the text of /proc/PID/status. It returns the user id with which the process
// accesses files, and its effective capabilities.
func credentials(status string) (uid uint32, caps uint64, err error) {
	var haveUID, haveCaps bool
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case name == "Uid" && len(fields) == 4: // the real, effective, saved and file system user ids
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
