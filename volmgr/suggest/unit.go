package suggest

import (
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// longestUnit is the maximum length of a unit name, in bytes (UNIT_NAME_MAX of systemd, which
// counts the terminating zero).
const longestUnit = 255

// unitName matches the names that systemd allows (systemd.unit(5)): a prefix that does not begin
// with "@", and a type.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]*\.[a-z]+$`)

var unitTypes = []string{"service", "scope", "slice", "socket", "mount", "automount", "swap", "target", "path", "timer", "device"}

// ValidUnit reports whether systemd allows the name, which must include the type of the unit.
func ValidUnit(name string) bool {
	dot := strings.LastIndexByte(name, '.')
	return len(name) <= longestUnit && unitName.MatchString(name) && dot > 0 && slices.Contains(unitTypes, name[dot+1:])
}

// Stoppable reports whether a unit that UnitOf found may be stopped to end one of its processes. A
// scope, such as a login session, may not be stopped. Neither may user@UID.service, because it also
// runs all other programs of that user.
func Stoppable(unit string) bool {
	return ValidUnit(unit) && strings.HasSuffix(unit, ".service") && !strings.HasPrefix(unit, "user@")
}

// Stop returns the command that ends a process. It stops the process's unit if that is Stoppable,
// and otherwise sends a signal.
func Stop(unit string, pid int) string {
	if Stoppable(unit) {
		return Command("systemctl stop %s", unit)
	}
	return Command("kill %d", pid)
}

// UnitOf returns the unit of the system's service manager that a process is in, or "" if there is
// none. It reads the content of /proc/PID/cgroup (cgroups(7)).
//
// Like systemd, UnitOf takes the outermost unit of the path, because only the service manager makes
// the directories down to that level. Directories below it belong to the unit (Delegate=), so they
// may have any name, including that of another service. A user's service manager and a container's
// one make their units there.
func UnitOf(cgroups string) string {
	var unit string
	for _, g := range proc.ParseCgroups(cgroups) {
		// Version 1 has a separate hierarchy for systemd, and version 2 has no name. If both are
		// mounted, the processes are all at the root of the one that systemd does not use.
		if g.Controllers == "name=systemd" || g.Controllers == "" {
			if found := outermost(g.Path); found != "" {
				unit = found
			}
		}
	}

	return unit
}

// outermost returns the first component of a control group's path that is not a slice, if it is the
// name of a unit.
func outermost(path string) string {
	for component := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		name := strings.TrimPrefix(component, "_") // systemd's escape for names like "cgroup.x"
		switch {
		case !ValidUnit(name):
			return ""
		case !strings.HasSuffix(name, ".slice"):
			return name
		}
	}

	return ""
}
