// Package systemd talks to systemd over D-Bus. It reads the states of units, reports their changes,
// and starts and stops units. It makes no decisions.
//
//	systemd.go   checks whether the host runs systemd, and whether systemd runs this process
//	bus.go       connects when necessary, and receives signals
//	watch.go     reports changes of units
//	unit.go      reads the state of a unit
//	order.go     reads the settings of a unit
//	job.go       starts and stops units, and waits for the results
//
// A signal only tells that a unit has changed; callers then query the new state. Every query has a
// time limit. Without an answer, the state is unknown: a unit never counts as gone because systemd
// does not answer.
//
// The package uses godbus because the package dbus of go-systemd/v22 hides lost signals. Its
// StartTransientUnitContext could pass file descriptors, but three facts prevent its use:
//   - After a lost connection, dispatch returns without closing the channels of waiting jobs.
//   - Subscribe requests neither UnitRemoved nor NameOwnerChanged, and ignores a failed AddMatch.
//   - These signals, and calls such as UnrefUnit, need the godbus connections below its Conn.
package systemd

import (
	"errors"
	"os"
	"path"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// ErrNone is returned on a host that was not booted with systemd.
var ErrNone = errors.New("this host was not booted with systemd")

// Booted reports whether the host was booted with systemd (sd_booted(3)).
func Booted() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// InService reports whether systemd runs this process as part of a service. Two conditions must be
// true: the process is in the cgroup of a service, and it has the variable INVOCATION_ID. The
// variable alone is not enough, because a shell can inherit it. Such a shell is in the cgroup of a
// session.
func InService() bool {
	if !Booted() || os.Getenv("INVOCATION_ID") == "" {
		return false
	}
	groups, err := proc.OwnCgroups()
	return err == nil && serviceOf(groups) != ""
}

// serviceOf returns the name of the service to which a process with these cgroups belongs. The name
// is empty if the process belongs to no service.
func serviceOf(groups []proc.Cgroup) string {
	for _, g := range groups {
		if g.Systemd() && strings.HasSuffix(g.Path, ".service") {
			return path.Base(g.Path)
		}
	}
	return ""
}
