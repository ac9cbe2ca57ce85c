// Package systemd talks to the system's service manager over D-Bus: what a unit
// is like now, that something about it changed, and what is to be started and
// stopped. It decides nothing.
//
//	systemd.go   whether there is a systemd, and whether it runs this process
//	bus.go       the connection, made when it is first needed, and its signals
//	watch.go     who is told of which units
//	unit.go      what a unit is like
//	job.go       starting and stopping, with the result
//
// Signals say only that something changed; what it is now is then asked. Every
// question is bounded, and no answer is no answer: nobody is taken for gone.
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

// InService reports whether this process is a service's: it is in the cgroup of
// one, and has the mark that systemd gives to each invocation. A shell that
// inherited the mark is in the cgroup of a session.
func InService() bool {
	if !Booted() || os.Getenv("INVOCATION_ID") == "" {
		return false
	}
	groups, err := proc.OwnCgroups()
	return err == nil && serviceOf(groups) != ""
}

// serviceOf returns the service whose control group a process is in, by systemd's hierarchies;
// empty if there is none.
func serviceOf(groups []proc.Cgroup) string {
	for _, g := range groups {
		if g.Systemd() && strings.HasSuffix(g.Path, ".service") {
			return path.Base(g.Path)
		}
	}
	return ""
}
