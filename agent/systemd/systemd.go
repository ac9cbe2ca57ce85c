// Package systemd talks to the system's service manager over D-Bus. It reads the states of units,
// reports their changes, and starts and stops them. It makes no decisions.
//
//	systemd.go   whether there is a systemd, and whether it runs this process
//	bus.go       the connection, made when it is first needed, and its signals
//	watch.go     reports changes of units
//	unit.go      reads the state of a unit
//	order.go     reads the settings of a unit
//	job.go       starting and stopping, with the result
//
// A signal only says that something changed, and the new state is then queried. Every query is
// bounded. If there is no answer, the state is unknown: a unit never counts as gone for lack of an
// answer.
package systemd

import (
	"errors"
	"os"
	"path"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// ErrNone says that this host was not booted with systemd.
var ErrNone = errors.New("this host was not booted with systemd")

// Booted reports whether the host was booted with systemd (sd_booted(3)).
func Booted() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// InService reports whether this process belongs to a service: it is in the cgroup of a service,
// and has the mark that systemd gives to each invocation. A shell that inherited the mark is in the
// cgroup of a session.
func InService() bool {
	if !Booted() || os.Getenv("INVOCATION_ID") == "" {
		return false
	}
	groups, err := proc.OwnCgroups()
	return err == nil && serviceOf(groups) != ""
}

// serviceOf returns the service whose cgroup contains a process, according to systemd's
// hierarchies. It is empty if there is none.
func serviceOf(groups []proc.Cgroup) string {
	for _, g := range groups {
		if g.Systemd() && strings.HasSuffix(g.Path, ".service") {
			return path.Base(g.Path)
		}
	}
	return ""
}
