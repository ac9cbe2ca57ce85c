package suggest

import (
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// longestUnit is the longest name of a unit, in bytes (UNIT_NAME_MAX of systemd,
// which counts the terminating zero).
const longestUnit = 255

// unitName matches the names that systemd allows (systemd.unit(5)): a prefix that
// does not begin with "@", and a type.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]*\.[a-z]+$`)

var unitTypes = []string{"service", "scope", "slice", "socket", "mount", "automount", "swap", "target", "path", "timer", "device"}

// ValidUnit reports whether systemd allows the name of a unit, with its type.
func ValidUnit(name string) bool {
	dot := strings.LastIndexByte(name, '.')
	return len(name) <= longestUnit && unitName.MatchString(name) && dot > 0 && slices.Contains(unitTypes, name[dot+1:])
}

// Stoppable reports whether a unit, as UnitOf finds it, may be stopped to end one
// of its processes. A scope, such as a login session, may not, and neither may
// user@UID.service, which runs everything else of that user too.
func Stoppable(unit string) bool {
	return ValidUnit(unit) && strings.HasSuffix(unit, ".service") && !strings.HasPrefix(unit, "user@")
}

// Stop returns the command that ends a process: the stop of its unit if that is
// Stoppable, else a signal.
func Stop(unit string, pid int) string {
	if Stoppable(unit) {
		return Command("systemctl stop %s", unit)
	}
	return Command("kill %d", pid)
}

// UnitOf returns the unit of the system's service manager that a process is in,
// from the content of its /proc/PID/cgroup (cgroups(7)); empty if there is none.
//
// It is the outermost unit of the path, as for systemd itself: only the service
// manager makes the directories down to there. What lies deeper belongs to the
// unit (Delegate=), so it may have any name, also that of another service; a
// user's own service manager and a container's make their units there.
func UnitOf(cgroups string) string {
	var unit string
	for _, g := range proc.ParseCgroups(cgroups) {
		// Version 1 has a hierarchy of systemd's own; version 2 has no name. Where
		// both are mounted, the one that systemd does not use is all at its root.
		if g.Controllers == "name=systemd" || g.Controllers == "" {
			if found := outermost(g.Path); found != "" {
				unit = found
			}
		}
	}
	return unit
}

// outermost returns the first component of a control group's path that is no
// slice, if it is the name of a unit.
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
